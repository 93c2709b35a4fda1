// Activations in the forms that products read.
#include "pieces.cuh"

// x [T, cols] with rows `stride` values apart -> `pieces.cuh`; cols is a multiple of 16. A thread a step of a row.
extern "C" __global__ void to_pieces(const float *x, i64 stride, int rows, int cols, int groups, u8 *out) {
    in_turn();
    const int i = blockIdx.y * blockDim.x + threadIdx.x;
    const int row = blockIdx.x * 8 + i % 8, step = i / 8;
    if (row >= rows || step >= groups * 16) return;
    float values[16] = {};
    x += row * stride + step * 16;
    if (step * 16 < cols) {
        if (((size_t)x & 15) == 0) {
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const float4 four = ((const float4 *)x)[k];
                values[4 * k] = four.x, values[4 * k + 1] = four.y, values[4 * k + 2] = four.z, values[4 * k + 3] = four.w;
            }
        } else {
#pragma unroll
            for (int k = 0; k < 16; k++) values[k] = x[k];
        }
    }
    u8 *to = pieces::step_at(out, groups, row, step);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        u32 words[4];
#pragma unroll
        for (int k = 0; k < 4; k++) words[k] = ptx::floats_to_bf162(values[4 * k + 2 * half], values[4 * k + 2 * half + 1]);
        *(uint4 *)(to + half * pieces::HALF) = make_uint4(words[0], words[1], words[2], words[3]);
    }
}

// x [T, cols] in pieces of four floats, 64 a group, 32 groups side by side, completed with zeros.
extern "C" __global__ void turn(const float *x, i64 stride, int cols, int groups, float4 *out) {
    in_turn();
    x += blockIdx.x * stride, out += (i64)blockIdx.x * ((groups + 31) / 32 * 32) * 64;
    for (int i = threadIdx.x; i < groups * 64; i += blockDim.x) {
        const int group = i / 64, piece = i % 64, at = i * 4;
        float4 four = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (at + 4 <= cols) four = make_float4(x[at], x[at + 1], x[at + 2], x[at + 3]);
        out[(group / 32 * 64 + piece) * 32 + group % 32] = four;
    }
}
