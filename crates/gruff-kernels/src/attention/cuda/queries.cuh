// The queries of a tile on their way to shared memory.
#pragma once

#include "tile.cuh"

// A row of queries, a value of every 32 a lane.
constexpr int EACH = (DK + 31) / 32;
struct Query {
    float at[EACH];
};

// The queries of a tile.
struct Queries {
    const float *at;
    i64 token, head;
    int4 entry;
    int start, first_head, group;

    // Asks for row `r`, where there is one.
    __device__ __forceinline__ Query row(int r) const {
        const int lane = threadIdx.x & 31, row = entry.y + r;
        const float *from = at + (start + row / group) * token + (first_head + row % group) * head;
        Query query;
#pragma unroll
        for (int i = 0; i < EACH; i++) query.at[i] = r < entry.z && (DK % 32 == 0 || lane + 32 * i < DK) ? from[lane + 32 * i] : 0.0f;
        return query;
    }
};

// A row of queries as two halves each, scaled by a power of two to a largest value from 1 to 2; what that takes from the scores is
// in `factors`. By a warp.
static __device__ __forceinline__ void put_query(u8 *shared, int r, const Query &query, float scale) {
    const int lane = threadIdx.x & 31;
    float largest = 0.0f;
#pragma unroll
    for (int i = 0; i < EACH; i++) largest = fmaxf(largest, fabsf(query.at[i]));
    largest = warp_max(largest);
    int exponent = (__float_as_int(largest) >> 23) - 127;
    exponent = max(-100, min(100, exponent));
    const float down = __int_as_float((127 - exponent) << 23);
    if (lane == 0) ((float *)(shared + FACTORS_AT))[r] = __fmul_rn(scale, __int_as_float((127 + exponent) << 23));
    u16 *high = (u16 *)(shared + r * KEY_PITCH), *low = (u16 *)(shared + (ROWS + r) * KEY_PITCH);
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        int dim = lane + 32 * i;
        if (DK % 32 != 0 && dim >= DK) break;
        float value = __fmul_rn(query.at[i], down);
        u16 rounded = ptx::float_to_half(value);
        high[dim] = rounded;
        low[dim] = ptx::float_to_half(__fadd_rn(value, -ptx::half_to_float(rounded)));
    }
}

// Zeros for the rows of a tile from `rows` on, of which there are none.
static __device__ __forceinline__ void put_no_queries(u8 *shared, int rows) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        uint4 *to = (uint4 *)(shared + (half * ROWS + rows) * KEY_PITCH);
#pragma unroll 1
        for (int i = threadIdx.x; i < (ROWS - rows) * (KEY_PITCH / 16); i += THREADS) to[i] = make_uint4(0, 0, 0, 0);
    }
    for (int r = rows + threadIdx.x; r < ROWS; r += THREADS) ((float *)(shared + FACTORS_AT))[r] = 0.0f;
}
