// Plain floats on tensor cores: what enters as it is becomes two terms of 16 bits each, the rounded value and the rounded
// remainder.
//
// x has two terms of bfloat16 (16 bits); with weights of F16 two halves (22 bits), of values that are scaled by a power of two for
// each group of 256 of a row, so that the largest lies below 2^15. Weights of F16 and BF16 are what they are; those of F32 have two
// terms of bfloat16. Products of second terms with each other are left out: they are 2^-18 of the result.
//
// Order of the sums, for any number of columns: values go by in runs of 32. Lane t of four has values 8 t .. 8 t + 8 of a run; its
// first four stand in the first step of 16 values that one `mma` multiplies, the others in the second. A step adds first term
// times second, second times first, first times first. Eight runs, 256 values, are a chain that begins with zero; these
// sums of groups are scaled back and added in order, in f32.
//
// What is infinite, or beyond 3.38e38, gives NaN.
//
// Constants: WEIGHT (0: F32, 1: F16, 30: BF16).
#pragma once

#include "product.cuh"

namespace terms {

// Values of a run, and runs of a group.
constexpr int RUN = 32;
constexpr int RUNS = 8;
constexpr int GROUP = RUN * RUNS;

// x in memory: [tile of 8 rows][run][term][row][32 values]; a run of a tile, and one term of it.
constexpr int TERM_BYTES = 8 * RUN * 2;
constexpr int RUN_BYTES = 2 * TERM_BYTES;

// Terms of a weight; words of 16 bytes that eight of them lie in.
constexpr int WEIGHT_TERMS = WEIGHT == 0 ? 2 : 1;
constexpr int WORDS = WEIGHT == 0 ? 2 : 1;
constexpr int WEIGHT_BYTES = WEIGHT == 0 ? 4 : 2;

// Two values in two terms.
static __device__ __forceinline__ void split(float low, float high, u32 &first, u32 &second) {
#if WEIGHT == 1
    first = ptx::floats_to_half2(low, high);
    const float2 rounded = half2_to_float2(first);
    second = ptx::floats_to_half2(low - rounded.x, high - rounded.y);
#else
    first = ptx::floats_to_bf162(low, high);
    second = ptx::floats_to_bf162(low - __uint_as_float(first << 16), high - __uint_as_float(first & 0xffff0000u));
#endif
}

// Eight values of x in terms of four words each.
static __device__ __forceinline__ void split_values(const float (&values)[8], float scale, u32 (&first)[4], u32 (&second)[4]) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (WEIGHT == 1) split(values[2 * i] * scale, values[2 * i + 1] * scale, first[i], second[i]);
        else split(values[2 * i], values[2 * i + 1], first[i], second[i]);
    }
}

// What the values of a group are multiplied with before they become halves, and its inverse; `largest` is the largest magnitude.
static __device__ __forceinline__ void group_scale(float largest, float &scale, float &inverse) {
    // 2^14 over the power of two in the largest; both numbers normal.
    const u32 exponent = max(__float_as_uint(largest) >> 23, 15u);
    scale = __uint_as_float((268 - exponent) << 23);
    inverse = __uint_as_float((exponent - 14) << 23);
}

// 16 bytes of weights that do not lie on such a border, from value k of a row on.
static __device__ __forceinline__ uint4 gather_word(const u8 *row, int k, int cols) {
    constexpr int VALUES = 16 / WEIGHT_BYTES;
    u32 words[4] = {};
#pragma unroll
    for (int i = 0; i < VALUES; i++) {
        if (k + i >= cols) continue;
        if (WEIGHT == 0) words[i % 4] = ((const u32 *)row)[k + i];
        else words[i / 2 % 4] |= (u32)((const u16 *)row)[k + i] << 16 * (i % 2);
    }
    return make_uint4(words[0], words[1], words[2], words[3]);
}

// Eight weights as they lie -> their terms.
static __device__ __forceinline__ void split_weights(const uint4 (&from)[WORDS], u32 (&to)[WEIGHT_TERMS][4]) {
#if WEIGHT == 0
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint4 four = from[i];
        split(__uint_as_float(four.x), __uint_as_float(four.y), to[0][2 * i], to[1][2 * i]);
        split(__uint_as_float(four.z), __uint_as_float(four.w), to[0][2 * i + 1], to[1][2 * i + 1]);
    }
#else
    to[0][0] = from[0].x, to[0][1] = from[0].y, to[0][2] = from[0].z, to[0][3] = from[0].w;
#endif
}

// Products of a step, in order: which term of the weights meets which of x.
constexpr int PRODUCTS = WEIGHT_TERMS + 1;
static __device__ __forceinline__ constexpr int weight_term(int product) { return WEIGHT_TERMS == 2 && product == 1 ? 1 : 0; }
static __device__ __forceinline__ constexpr int x_term(int product) { return product == 0 ? 1 : 0; }

// One of them: 16 rows, whose eight weights of a run a lane has of row lane / 4 (`top`) and of row 8 + lane / 4, times 8 columns.
static __device__ __forceinline__ void multiply(
    float (&sums)[4], const u32 (&top)[WEIGHT_TERMS][4], const u32 (&bottom)[WEIGHT_TERMS][4], const u32 (&x)[2][4], int step, int product
) {
    const int w = weight_term(product), v = x_term(product);
    const u32 a[4] = {top[w][2 * step], bottom[w][2 * step], top[w][2 * step + 1], bottom[w][2 * step + 1]};
    const u32 b[2] = {x[v][2 * step], x[v][2 * step + 1]};
#if WEIGHT == 1
    ptx::mma_f16_k16(sums, a, b);
#else
    ptx::mma_bf16_k16(sums, a, b);
#endif
}

// What a gated unit gives in row `row` for row `to` of x.
static __device__ __forceinline__ void finish_glu(const Matrices &matrices, int what, int expert, int row, i64 to, float gate, float up) {
    matrices.at[0].out[to * matrices.at[0].out_stride + row] = glu_value(matrices, what, expert, gate, up);
}

} // namespace terms
