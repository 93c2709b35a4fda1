// Rotary positions.

#include "rope.cuh"

// Cosines and sines of a step: angles in double precision, as the contract has them. A thread a token and pair.
extern "C" __global__ void rope_table(
    const int *positions, const double *frequencies, const int *axes, float *table, i64 token_stride, i64 part_stride,
    int tokens, int half, double factor
) {
    in_turn();
    i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= (i64)tokens * half) return;
    int token = (int)(i / half), j = (int)(i - (i64)token * half);
    double sine, cosine;
    sincos((double)positions[axes[j] * tokens + token] * frequencies[j], &sine, &cosine);
    float *at = table + token * token_stride + j;
    at[0] = (float)(cosine * factor);
    at[part_stride] = (float)(sine * factor);
}

// Turns the pairs of every head in place. A thread a token, head and pair.
extern "C" __global__ void rope(
    float *x, i64 x_token, i64 x_head, const float *table, i64 table_token, i64 table_part, int tokens, int heads,
    int half, int interleaved
) {
    in_turn();
    i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= (i64)tokens * heads * half) return;
    i64 row = i / half;
    int j = (int)(i - row * half), token = (int)((u32)row / (u32)heads), head = (int)row - token * heads;
    const float *turn = table + token * table_token + j;
    float cosine = turn[0], sine = turn[table_part];
    float *pair = x + token * x_token + head * x_head + (interleaved ? 2 * j : j);
    int distance = interleaved ? 1 : half;
    float2 by = turned(pair[0], pair[distance], cosine, sine);
    pair[0] = by.x;
    pair[distance] = by.y;
}
