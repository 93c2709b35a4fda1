// Matrices of plain floats and integers times columns of f32.
//
// A warp computes two rows (of one matrix, or one of gate and the same of up) for COLUMNS rows of x. Lane l takes values
// 8 l .. 8 l + 8 of every 256 in order, by fused multiply-adds, and lanes are added by a tree: the order depends on the
// row's length alone.
//
// Constants: WEIGHT, COLUMNS, SLOTS (1: blockIdx.y counts rows of the output, each with an expert of its own; one column).
#define WEIGHT_IS_SCALAR
#include "product.cuh"

#if WEIGHT == 0
typedef u32 Stored;
__device__ __forceinline__ float value(Stored bits) { return __uint_as_float(bits); }
#elif WEIGHT == 1
typedef u16 Stored;
__device__ __forceinline__ float value(Stored bits) { return half_to_float(bits); }
#elif WEIGHT == 24
typedef i8 Stored;
__device__ __forceinline__ float value(Stored number) { return (float)(int)number; }
#elif WEIGHT == 25
typedef short Stored;
__device__ __forceinline__ float value(Stored number) { return (float)(int)number; }
#elif WEIGHT == 26
typedef int Stored;
__device__ __forceinline__ float value(Stored number) { return (float)number; }
#elif WEIGHT == 27
typedef i64 Stored;
__device__ __forceinline__ float value(Stored number) { return (float)number; }
#elif WEIGHT == 28
typedef double Stored;
__device__ __forceinline__ float value(Stored number) { return (float)number; }
#elif WEIGHT == 30
typedef u16 Stored;
__device__ __forceinline__ float value(Stored bits) { return bf16_to_float(bits); }
#endif

// Eight weights from k on, zeros behind the end.
__device__ __forceinline__ void load_weights(const Stored *row, int k, int cols, bool aligned, float (&to)[8]) {
    if (aligned && k + 8 <= cols) {
        Stored eight[8];
        constexpr int VECTORS = sizeof(eight) / 16;
        if constexpr (VECTORS == 0) {
            *(uint2 *)eight = *(const uint2 *)(row + k);
        } else {
#pragma unroll
            for (int i = 0; i < VECTORS; i++) ((uint4 *)eight)[i] = ((const uint4 *)(row + k))[i];
        }
#pragma unroll
        for (int i = 0; i < 8; i++) to[i] = value(eight[i]);
    } else {
#pragma unroll
        for (int i = 0; i < 8; i++) to[i] = k + i < cols ? value(row[k + i]) : 0.0f;
    }
}

extern "C" __global__ void __launch_bounds__(256)
scalar(Matrices matrices, int count, int what, FloatRows x, const int *ids) {
    in_turn();
    const int lane = threadIdx.x & 31;
    int pair = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, index = 0;
    const bool glu = what >= GLU;
    if (!glu) index = matrix_of(matrices, count, 2, pair);
    const Matrix &matrix = matrices.at[index];
    const int row = glu ? pair : 2 * pair;
    if (row >= matrix.rows) return;
    const int next = min(row + 1, matrix.rows - 1);

    int expert = 0, to = x.first + blockIdx.y * COLUMNS, from = to;
#if SLOTS
    expert = ids[to / x.used * x.id_stride + to % x.used];
    if ((u32)expert >= (u32)x.experts) return;
    from = to / x.share;
#endif
    const i64 row_bytes = (i64)x.cols * sizeof(Stored);
    const u8 *base = matrix.weights + expert * matrix.matrix_bytes;
    const Stored *rows[2] = {
        (const Stored *)(base + row * row_bytes),
        (const Stored *)(glu ? matrices.at[1].weights + expert * matrices.at[1].matrix_bytes + row * row_bytes : base + next * row_bytes),
    };
    const bool aligned = (((size_t)rows[0] | (size_t)rows[1]) & 15) == 0;
    const float *values = x.values + from * x.stride;
    const bool x_aligned = (((size_t)values | (size_t)(x.stride * 4)) & 15) == 0;

    float sums[2][COLUMNS] = {};
#pragma unroll 2
    for (int k = lane * 8; k < x.cols; k += 256) {
        float weights[2][8];
        load_weights(rows[0], k, x.cols, aligned, weights[0]);
        load_weights(rows[1], k, x.cols, aligned, weights[1]);
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) {
            float column[8];
            load_values(values + min(c, x.rows - 1 - from) * x.stride, k, x.cols, x_aligned, column);
#pragma unroll
            for (int i = 0; i < 8; i++) {
                if (k + i < x.cols) {
                    sums[0][c] = __fmaf_rn(column[i], weights[0][i], sums[0][c]);
                    sums[1][c] = __fmaf_rn(column[i], weights[1][i], sums[1][c]);
                }
            }
        }
    }
#pragma unroll
    for (int c = 0; c < COLUMNS; c++) {
        const float first = warp_sum(sums[0][c]), second = warp_sum(sums[1][c]);
        if (from + c >= x.rows) continue;
        if (glu) {
            const float value = glu_value(matrices, what, expert, first, second);
            if (lane == 0) matrix.out[(to + c) * matrix.out_stride + row] = value;
        } else if (lane == 0) {
            finish(matrix, what, scale_of(matrix, expert), row, to + c, first);
        } else if (lane == 1 && row + 1 < matrix.rows) {
            finish(matrix, what, scale_of(matrix, expert), row + 1, to + c, second);
        }
    }
}
