// What the kernels of products share: operands, and what becomes of results.
#pragma once

#include "common.cuh"

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
    // Of gated units: where results go in pieces besides (`pieces.cuh`), or null, and how many groups a row of them has.
    u8 *pieces;
    i64 groups;
};

// What is done with a result: stored (with the bias added), added to what is there, or, of two matrices, gate and up,
// combined.
constexpr int STORE = 0;
constexpr int ADD = 1;
constexpr int GLU = 2;  // + the number of the gate

__device__ __forceinline__ float scale_of(const Matrix &matrix, int expert) {
    return matrix.scales ? matrix.scales[expert] : matrix.scale;
}

// What a result becomes, where it goes, where `before` is if it is added to that.
__device__ __forceinline__ void finish(const Matrix &matrix, int what, float scale, int row, i64 to, float before, float sum) {
    float value = __fmul_rn(sum, scale);
    if (what == ADD) value = __fadd_rn(before, value);
    else if (matrix.bias) value = __fadd_rn(value, matrix.bias[row]);
    matrix.out[to * matrix.out_stride + row] = value;
}

__device__ __forceinline__ void finish(const Matrix &matrix, int what, float scale, int row, i64 to, float sum) {
    finish(matrix, what, scale, row, to, what == ADD ? matrix.out[to * matrix.out_stride + row] : 0.0f, sum);
}

using ptx::copies_made;
using ptx::copies_wait;
using ptx::copy_16;

__device__ __forceinline__ int clamp_bytes(i64 left) { return left >= 16 ? 16 : left > 0 ? (int)left : 0; }

// Which matrix the rows of tile `tile` are of, and which tile of it that is, with `rows` rows a tile.
__device__ __forceinline__ int matrix_of(const Matrices &matrices, int count, int rows, int &tile) {
    int matrix = 0;
#pragma unroll
    for (int i = 0; i < MATRICES - 1; i++) {
        const int tiles = (matrices.at[i].rows + rows - 1) / rows;
        if (matrix == i && i + 1 < count && tile >= tiles) matrix = i + 1, tile -= tiles;
    }
    return matrix;
}
