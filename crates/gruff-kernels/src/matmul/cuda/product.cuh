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

// What a gated unit gives, of the sums of its gate and its up.
__device__ __forceinline__ float glu_value(const Matrices &matrices, int what, int expert, float gate, float up) {
    gate = __fmul_rn(gate, scale_of(matrices.at[0], expert)), up = __fmul_rn(up, scale_of(matrices.at[1], expert));
    return gate_value(what - GLU, gate) * up;
}

// Rows of x in f32.
struct FloatRows {
    const float *values;
    // Values from a row to the next.
    i64 stride;
    int rows, cols;
    // With SLOTS: rows of the output that share a row of x; experts of the stack; experts of a token; the first row of the
    // output; values from the ids of a token to the next's.
    int share, experts, used, first;
    i64 id_stride;
};

// Eight values of x from k on, zeros behind the end.
__device__ __forceinline__ void load_values(const float *row, int k, int cols, bool aligned, float (&to)[8]) {
    if (aligned && k + 8 <= cols) {
        *(float4 *)to = *(const float4 *)(row + k);
        *(float4 *)(to + 4) = *(const float4 *)(row + k + 4);
    } else {
#pragma unroll
        for (int i = 0; i < 8; i++) to[i] = k + i < cols ? row[k + i] : 0.0f;
    }
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
