// What the kernels of packed products share: operands, and the one order in which a result is added up.
//
// Sums over a sub-block of 32 values, or over its halves where those have scales of their own, are exact integers. From
// there on everything is f32, and the order is a function of the row's length alone:
//
//     group = 0
//     for each sub-block of the group, in order:
//         part = scale * sum                      (with halves: then part = fma(scale, sum, part) for the second)
//         part = fma(minimum, x_sum, part)        (for types with minima; with halves twice)
//         group = fma(x_scale, part, group)
//     the same with the second terms of loud blocks
//     result = sum of the groups, in order; * scale beside the matrix; + bias
//
// so that one column and a batch, vectors and matrices, have the same bits.
#pragma once

#include "blocks.cuh"

// A matrix (of a stack) and what becomes of its products; as `Matrix` in Rust has it.
struct Matrix {
    const u8 *weights;
    float *out;
    const float *bias;
    // One scale a matrix of the stack, or null for `scale`.
    const float *scales;
    // Values from a row of the output to the next.
    i64 out_stride;
    // Bytes from a matrix of the stack to the next.
    i64 matrix_bytes;
    int rows;
    float scale;
};

// At most so many matrices read one input in one launch.
constexpr int MATRICES = 4;

struct Matrices {
    Matrix at[MATRICES];
};

// What is done with a result: stored (with the bias added), added to what is there, or, of two matrices, gate and up,
// combined.
constexpr int STORE = 0;
constexpr int ADD = 1;
constexpr int GLU = 2;  // + the number of the gate

// A sub-block of activations: the scale and sums of its two halves' codes, and the same of its second term, whose scale
// is zero where there is none.
struct XBlock {
    float scale;
    int sums;
    float second_scale;
    int second_sums;
};

__device__ __forceinline__ int first_sum(int sums) { return (int)(short)sums; }
__device__ __forceinline__ int last_sum(int sums) { return sums >> 16; }
__device__ __forceinline__ int both_sums(int sums) { return first_sum(sums) + last_sum(sums); }

// Adds what a sub-block contributes: `low` is the sum of its products, or of its first half's, `high` of the second's.
template <class W>
__device__ __forceinline__ void
add_sub_block(const float *scale, const float *minimum, float low, float high, float x_scale, float x_low, float x_high, float &sum) {
    float part = __fmul_rn(scale[0], low);
    if (W::HALVES) part = __fmaf_rn(scale[1], high, part);
    if (W::MINIMUM) part = __fmaf_rn(minimum[0], x_low, part);
    if (W::MINIMUM && W::HALVES) part = __fmaf_rn(minimum[1], x_high, part);
    sum = __fmaf_rn(x_scale, part, sum);
}

__device__ __forceinline__ float scale_of(const Matrix &matrix, int expert) {
    return matrix.scales ? matrix.scales[expert] : matrix.scale;
}

// What a result becomes, where it goes.
__device__ __forceinline__ void finish(const Matrix &matrix, int what, float scale, int row, i64 to, float sum) {
    float value = __fmul_rn(sum, scale);
    float *out = matrix.out + to * matrix.out_stride + row;
    if (what == ADD) value = __fadd_rn(*out, value);
    else if (matrix.bias) value = __fadd_rn(value, matrix.bias[row]);
    *out = value;
}

using ptx::copies_made;
using ptx::copies_wait;
using ptx::copy_16;

__device__ __forceinline__ int clamp_bytes(i64 left) { return left >= 16 ? 16 : left > 0 ? (int)left : 0; }

// A number that the compiler knows.
template <int N>
struct Index {
    static constexpr int value = N;
};

// Calls f(Index<J>) for COUNT sub-blocks from FIRST on.
template <int FIRST, int COUNT, class F>
__device__ __forceinline__ void each_sub_block(F &&f) {
    if constexpr (COUNT > 0) {
        f(Index<FIRST>());
        each_sub_block<FIRST + 1, COUNT - 1>(f);
    }
}
