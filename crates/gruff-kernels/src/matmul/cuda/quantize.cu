// Activations in the forms that products read.
#include "quantize.cuh"

// x [T, cols] with rows `stride` values apart, a row a block, or, shared by several (grid dimension y), a part of one; see
// `quantize_row`.
extern "C" __global__ void quantize(const float *x, i64 stride, int cols, int groups, u32 *codes, u32 *second, int4 *blocks) {
    __shared__ float scratch[32];
    const int row = blockIdx.x;
    quantize_row<TURNED>(x + row * stride, row, cols, groups, codes, second, blocks, blockIdx.y, gridDim.y, scratch);
}

// x [T, cols] in pieces of four floats, 64 a group, 32 groups side by side as above, completed with zeros.
extern "C" __global__ void turn(const float *x, i64 stride, int cols, int groups, float4 *out) {
    x += blockIdx.x * stride, out += (i64)blockIdx.x * ((groups + 31) / 32 * 32) * 64;
    for (int i = threadIdx.x; i < groups * 64; i += blockDim.x) {
        const int group = i / 64, piece = i % 64, at = i * 4;
        float4 four = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (at + 4 <= cols) four = make_float4(x[at], x[at + 1], x[at + 2], x[at + 3]);
        out[(group / 32 * 64 + piece) * 32 + group % 32] = four;
    }
}
