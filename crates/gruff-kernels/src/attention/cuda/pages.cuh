// How keys and values are kept in pages. KV is 0 for f32, 1 for f16, 2 for q8_0.

#pragma once

#include "common.cuh"

#define PAGE 32

// The row of a head of a token in a pool of pages.
static __device__ __forceinline__ i64 kept_row(const int *sequence, const int *pages, int token, int kv_heads, int head) {
    int position = sequence[2] + token - sequence[0];
    i64 page = pages[sequence[4] + position / PAGE];
    return (page * kv_heads + head) * PAGE + position % PAGE;
}

// Values `32 * piece..` of a row of `dim`, one a lane, all lanes together: rounded to the type they are kept in.
static __device__ __forceinline__ void keep_piece(u8 *pool, i64 row, int dim, int piece, float value) {
    const int lane = threadIdx.x & 31, i = piece * 32 + lane;
#if KV == 2
    float scale = warp_max(fabsf(value)) / 127.0f;
    float inverse = scale == 0.0f ? 0.0f : 1.0f / scale;
    u8 *block = pool + (row * (dim / 32) + piece) * 34;
    ((i8 *)block)[2 + lane] = (i8)max(-128, min(127, (int)roundf(value * inverse)));
    if (lane == 0) *(u16 *)block = float_to_half(scale);
#else
    if (i >= dim) return;
#if KV == 0
    ((float *)pool)[row * dim + i] = value;
#else
    ((u16 *)pool)[row * dim + i] = float_to_half(value);
#endif
#endif
}
