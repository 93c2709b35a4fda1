// What the kernels of packed products share: from codes to weights, and the one order in which products are added up.
//
// A weight is rounded to bfloat16 from bfloat16 factors, and meets activations that are rounded likewise:
//
//     weight = bf16(bf16(scale) * code + bf16(minimum))
//
// Four lanes share a row's group of 256 values, 64 each (`blocks.cuh`), and every step of 16 values has four of each lane: its word
// of codes of the same number. Sums over a group are a chain of 16 `mma`, from zero on. The sums of groups are added in f32, in
// order; then come the scale beside the matrix, and the bias. So one column and a batch, `matvec.cu` and `matmul.cu`, have the
// same bits.
#pragma once

#include "blocks.cuh"
#include "pieces.cuh"
#include "product.cuh"

// A number that the compiler knows.
template <int N>
struct Index {
    static constexpr int value = N;
};

// Calls f(Index<N>) for COUNT numbers from FIRST on.
template <int FIRST, int COUNT, class F>
__device__ __forceinline__ void each(F &&f) {
    if constexpr (COUNT > 0) {
        f(Index<FIRST>());
        each<FIRST + 1, COUNT - 1>(f);
    }
}

// Codes are taken for the denormal numbers that their bits are in bfloat16, code * 2^-133 (up to 255: the next exponent goes on in
// the same steps), so that one multiplication and addition makes weights of them: of the scale times 2^101 and the minimum times
// 2^-32, a weight times 2^-32. Scales of files are far below 2^27, where that would overflow.
constexpr float SCALE_UP = 2535301200456458802993406410752.0f;  // 2^101
constexpr float SCALE_DOWN = 3.944304526105059e-31f;            // 2^-101
constexpr float WEIGHT_DOWN = 2.3283064365386963e-10f;          // 2^-32
constexpr float WEIGHT_UP = 4294967296.0f;

// Half bytes of S = 1 stay where they are, sixteen times their value.
template <class W, int S>
constexpr float CODE_UP = W::NIBBLES && S == 1 ? 16.0f : 1.0f;

// Both factors of 16 or 32 codes, each twice in a word.
struct Factors {
    u32 scale, minimum;
};

template <class W, int S>
__device__ __forceinline__ Factors factors(float scale, float minimum) {
    constexpr float up = SCALE_UP / CODE_UP<W, S>, down = SCALE_DOWN * CODE_UP<W, S>;
    Factors made;
    made.scale = ptx::floats_to_bf162(scale * up, scale * up);
    if constexpr (!W::MINIMUM) {
        // Exact: offsets are powers of two.
        minimum = -(float)W::OFFSET * (__uint_as_float(made.scale & 0xffff0000u) * down);
    }
    made.minimum = ptx::floats_to_bf162(minimum * WEIGHT_DOWN, minimum * WEIGHT_DOWN);
    return made;
}

// The factors of sub-block S of a lane; of types without HALVES the first are all.
template <int S>
__device__ __forceinline__ void factors_of(const Share &share, int t, Factors (&by)[2]) {
    float scale[2] = {}, minimum[2] = {};
    Weight::template scales<S>(share, t, scale, minimum);
    by[0] = factors<Weight, S>(scale[0], minimum[0]);
    by[1] = Weight::HALVES ? factors<Weight, S>(scale[1], minimum[1]) : by[0];
}

// What the lane makes of word I of sub-block S: values 0 and 1, 2 and 3.
template <int S, int I, class W = Weight>
__device__ __forceinline__ void weights_of(const Share &share, const u32 *book, const Factors (&by)[2], u32 &first, u32 &second) {
    const Factors &of = by[I / 4];
    if constexpr (W::NIBBLES) {
        constexpr u32 mask = S == 0 ? 0x000f000fu : 0x00f000f0u;
        const u32 word = share.template word<4 * I>();
        first = ptx::fma_bf162(word & mask, of.scale, of.minimum);
        second = ptx::fma_bf162(word >> 8 & mask, of.scale, of.minimum);
    } else if constexpr (W::LEVELS) {
        W::template pairs<S, I>(share, book, first, second);
        first = ptx::fma_bf162(first, of.scale, of.minimum);
        second = ptx::fma_bf162(second, of.scale, of.minimum);
    } else {
        const u32 word = W::template word<S, I>(share, book);
        first = ptx::fma_bf162(word & 0x00ff00ffu, of.scale, of.minimum);
        second = ptx::fma_bf162(__byte_perm(word, 0, 0x4341), of.scale, of.minimum);
        if constexpr (W::SIGNS) {
            const u32 signs = W::template signs<S>(share);
            first ^= signs << (2 * I) & 0x80008000u;
            second ^= signs << (2 * I + 1) & 0x80008000u;
        }
    }
}

// Lanes that a group of a row has: four, but for the last group.
__device__ __forceinline__ int lanes_of(int cols, int group) {
    return min(blocks::LANES, (cols - group * blocks::GROUP + blocks::RUN - 1) / blocks::RUN);
}

// Stores what a gated unit gives in row `row` for row `to` of x.
__device__ __forceinline__ void finish_glu(const Matrices &matrices, int what, int expert, int row, i64 to, float gate, float up) {
    const Matrix &matrix = matrices.at[0];
    const float value = glu_value(matrices, what, expert, gate, up);
    matrix.out[to * matrix.out_stride + row] = value;
    if (matrices.pieces) pieces::store_value(matrices.pieces, (int)matrices.groups, (int)to, row, value);
}
