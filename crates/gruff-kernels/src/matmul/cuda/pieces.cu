// Activations in the form that products read.
#include "pieces.cuh"

// The four values from x on.
static __device__ __forceinline__ float4 four_at(const float *x) {
    if (((size_t)x & 15) == 0) return *(const float4 *)x;
    return make_float4(x[0], x[1], x[2], x[3]);
}

// x [T, cols] with rows `stride` values apart -> `pieces.cuh`; cols is a multiple of 4. A thread a step of a row.
extern "C" __global__ void to_pieces(const float *x, i64 stride, int rows, int cols, int groups, u8 *out) {
    in_turn();
    const int i = blockIdx.y * blockDim.x + threadIdx.x;
    const int row = blockIdx.x * 8 + i % 8, step = i / 8;
    if (row >= rows || step >= groups * 16) return;
    x += row * stride;
    u32 words[2][4];
#pragma unroll
    for (int t = 0; t < 4; t++) {
        const int word = step / 16 * 64 + 16 * t + step % 16;
        const float4 four = 4 * word < cols ? four_at(x + 4 * word) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (pieces::is_flat(out)) pieces::store_word(out, groups, row, word, four.x, four.y, four.z, four.w);
        words[0][t] = ptx::floats_to_bf162(four.x, four.y), words[1][t] = ptx::floats_to_bf162(four.z, four.w);
    }
    if (pieces::is_flat(out)) return;
    u8 *to = pieces::step_at(out, groups, row, step);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        *(uint4 *)(to + half * pieces::HALF) = make_uint4(words[half][0], words[half][1], words[half][2], words[half][3]);
    }
}
