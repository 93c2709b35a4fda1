// One row of a chunk's forward substitution, by the operations that `chunk.cuh` lists: what `token.cu`, which has the
// convolution and the gates behind it, and `net.cu`, which takes them in, share. A warp has eight columns of S. Row 0 of what
// it multiplies is the key's, row 1 the query's, the others are zeros: of a result, lanes 0 to 3 have the key's part and
// lanes 4 to 7 the query's, two columns each.

#pragma once

#include "chunk.cuh"

constexpr int STEPS = DK / 16;
// Keys in f32, rows apart so that eight of them lie in different banks.
constexpr int ROW = DK + 4;

// A warp's columns of S, in both terms.
struct State {
    u32 high[STEPS][2], low[STEPS][2];
};

// Asks for the eight columns that begin at `matrix`; zeros where there is no S yet, or no column.
static __device__ __forceinline__ void ask_state(float (&s)[STEPS][4], const float *matrix, bool here) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < STEPS; i++)
#pragma unroll
        for (int e = 0; e < 4; e++) s[i][e] = here ? matrix[(16 * i + 2 * t + e % 2 + e / 2 * 8) * DV + g] : 0.0f;
}

static __device__ __forceinline__ void split_state(State &state, const float (&s)[STEPS][4]) {
#pragma unroll
    for (int i = 0; i < STEPS; i++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const Split of = split(s[i][2 * h], s[i][2 * h + 1]);
            state.high[i][h] = of.high;
            state.low[i][h] = of.low;
        }
}

// The lane's words of rows 0 and 1 of a.
static __device__ __forceinline__ void two_rows(u32 (&a)[4], u32 (&a_rest)[4], const float *first, const float *second, float sign) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    a[0] = a[1] = a[2] = a[3] = a_rest[0] = a_rest[1] = a_rest[2] = a_rest[3] = 0;
    if (g > 1) return;
    const float *from = (g == 0 ? first : second) + 2 * t;
    sign = g == 0 ? sign : 1.0f;
    const Split low = split(sign * from[0], sign * from[1]), high = split(sign * from[8], sign * from[9]);
    a[0] = low.high, a[2] = high.high, a_rest[0] = low.low, a_rest[2] = high.low;
}

// What a row begins with: v - exp(G) S0^T k, and exp(G) S0^T q.
static __device__ __forceinline__ void begin_row(
    float (&c)[4], const State &state, const float *key, const float *query, float decayed, const float (&value)[2]
) {
    const int g = threadIdx.x % 32 / 4;
    float small[4] = {};
    c[0] = c[1] = c[2] = c[3] = 0.0f;
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
        u32 a[4], a_rest[4];
        two_rows(a, a_rest, key + 16 * s, query + 16 * s, 1.0f);
        multiply(c, small, a, a_rest, state.high[s], state.low[s]);
    }
#pragma unroll
    for (int e = 0; e < 2; e++) {
        const float by_state = __fadd_rn(c[e], small[e]);
        c[e] = g == 0 ? fmaf(-decayed, by_state, value[e]) : g == 1 ? __fmul_rn(decayed, by_state) : 0.0f;
        c[2 + e] = 0.0f;
    }
}

// Takes in the updates of a block of tokens, whose terms lie in rows of PITCH bytes, CHUNK rows of first terms before the
// second ones; `terms` is where the warp's columns begin.
template <int PITCH>
static __device__ __forceinline__ void take_in(float (&c)[4], const u8 *terms, int block, const float *on_key, const float *on_query) {
    u32 a[4], a_rest[4], b[2], b_rest[2];
    two_rows(a, a_rest, on_key + BLOCK * block, on_query + BLOCK * block, -1.0f);
    const u8 *from = terms + (BLOCK * block + threadIdx.x % 16) * PITCH;
    ptx::load_matrices_turned(b, from);
    ptx::load_matrices_turned(b_rest, from + CHUNK * PITCH);
    multiply_one(c, a, a_rest, b, b_rest);
}

// `rest` without what the tokens before `row` of its own block have added to a column, `updates[j * stride]`.
static __device__ __forceinline__ float
without_own_block(float rest, int row, const float *on_key, const float *updates, int stride) {
    const int first = row / BLOCK * BLOCK, count = row % BLOCK;
#pragma unroll
    for (int j = 0; j < BLOCK - 1; j++)
        if (j < count) rest = fmaf(-on_key[first + j], updates[j * stride], rest);
    return rest;
}

// A full chunk folded into the warp's columns of S, from `border` to `next`, 16 dimensions at a time; `update(j, column)` is
// u_j in f32. `any`: there is an S at the chunk's beginning.
template <class Update>
static __device__ __forceinline__ void fold(
    float *next, const float *border, bool any, bool inside, const float *chunk_keys, const float *sum, float total, float decayed,
    Update update
) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    u32 b[CHUNK / BLOCK][2], b_rest[CHUNK / BLOCK][2];
#pragma unroll
    for (int block = 0; block < CHUNK / BLOCK; block++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int j = BLOCK * block + 8 * h + 2 * t;
            float u[2];
            for (int e = 0; e < 2; e++) u[e] = __fmul_rn(expf(__fsub_rn(total, sum[j + e])), update(j + e, g));
            const Split of = split(u[0], u[1]);
            b[block][h] = of.high;
            b_rest[block][h] = of.low;
        }
#pragma unroll 1
    for (int first = 0; first < DK; first += 16) {
        float folded[4] = {};
#pragma unroll
        for (int block = 0; block < CHUNK / BLOCK; block++) {
            u32 a[4], a_rest[4];
#pragma unroll
            for (int q = 0; q < 4; q++) {
                const float *from = chunk_keys + (BLOCK * block + q / 2 * 8 + 2 * t) * ROW + first + g + q % 2 * 8;
                const Split of = split(from[0], from[ROW]);
                a[q] = of.high;
                a_rest[q] = of.low;
            }
            multiply_one(folded, a, a_rest, b[block], b_rest[block]);
        }
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int at = (first + g + e / 2 * 8) * DV + 2 * t + e % 2;
            const float before = any && inside ? border[at] : 0.0f;
            if (inside) next[at] = fmaf(decayed, before, folded[e]);
        }
    }
    __syncwarp();
}
