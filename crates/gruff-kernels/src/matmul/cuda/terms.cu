// Activations in two terms, as products with plain floats read them (`terms.cuh`).
//
// Constants: WEIGHT (1: halves, 30: bfloat16).
#include "terms.cuh"

// x [T, cols] with rows `stride` values apart -> terms; with halves, behind them, what the sums of each group of each row are
// multiplied with. A warp a group of 256 values of a row, eight a lane.
extern "C" __global__ void to_terms(const float *x, i64 stride, int cols, u8 *out, float *inverses) {
    in_turn();
    const int row = blockIdx.x, group = blockIdx.y * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x & 31;
    const int runs = (cols + terms::RUN - 1) / terms::RUN, groups = (cols + terms::GROUP - 1) / terms::GROUP;
    if (group >= groups) return;
    x += row * stride;
    float values[8], scale = 1.0f;
    load_values(x, group * terms::GROUP + lane * 8, cols, ((size_t)x & 15) == 0, values);
#if WEIGHT == 1
    float largest = 0.0f, inverse;
#pragma unroll
    for (int i = 0; i < 8; i++) largest = fmaxf(largest, fabsf(values[i]));
    terms::group_scale(warp_max(largest), scale, inverse);
    if (lane == 0) inverses[(i64)row * groups + group] = inverse;
#endif
    u32 first[4], second[4];
    terms::split_values(values, scale, first, second);
    const int run = group * terms::RUNS + lane / 4;
    if (run >= runs) return;
    u8 *to = out + ((i64)(row / 8) * runs + run) * terms::RUN_BYTES + row % 8 * (terms::RUN * 2) + lane % 4 * 16;
    *(uint4 *)to = make_uint4(first[0], first[1], first[2], first[3]);
    *(uint4 *)(to + terms::TERM_BYTES) = make_uint4(second[0], second[1], second[2], second[3]);
}
