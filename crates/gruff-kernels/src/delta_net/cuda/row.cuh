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

// Rows 0 and 1 of what is multiplied, as products take them: of two neighbouring values the word of both, and that of what it lacks.
// Rows are 8 bytes times this apart, so that lanes of both meet all banks.
static __device__ constexpr int pairs_of(int values) { return values / 2 + 4; }

static __device__ __forceinline__ uint2 pair_of(float first, float second) {
    const Split of = split(first, second);
    return make_uint2(of.high, of.low);
}

// The lane's words of them, of the 16 values that begin at `rows`.
static __device__ __forceinline__ void two_rows(u32 (&a)[4], u32 (&a_rest)[4], const uint2 *rows, int apart) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    uint2 low = make_uint2(0, 0), high = low;
    if (g < 2) low = rows[g * apart + t], high = rows[g * apart + t + 4];
    a[0] = low.x, a[2] = high.x, a_rest[0] = low.y, a_rest[2] = high.y;
    a[1] = a[3] = a_rest[1] = a_rest[3] = 0;
}

// The row's f and a, zeros behind it, by a block of THREADS threads: f as they are, and -f and a as products take them. Two threads
// have a value, each two of the four sums of `dot`, so that few registers hold what is on its way.
template <int THREADS>
static __device__ __forceinline__ void put_factors(
    uint2 *rows, float *on_key, const float *chunk_keys, const float *query, const float *sum, int row, float total
) {
    for (int i = threadIdx.x; i < 4 * CHUNK; i += THREADS) {
        const int j = i / 2 % CHUNK, part = i % 2;
        const bool of_key = i < 2 * CHUNK;
        float factor = 0.0f;
        if (j <= row) {
            const float *x = chunk_keys + j * ROW + 2 * part, *y = (of_key ? chunk_keys + row * ROW : query) + 2 * part;
            float sums[2] = {};
#pragma unroll 8
            for (int dim = 0; dim < DK; dim += 4) {
                const float2 a = *(const float2 *)(x + dim), b = *(const float2 *)(y + dim);
                sums[0] = fmaf(a.x, b.x, sums[0]), sums[1] = fmaf(a.y, b.y, sums[1]);
            }
            factor = __fadd_rn(sums[0], sums[1]);
        }
        factor = __fadd_rn(factor, __shfl_xor_sync(FULL_WARP, factor, 1));
        factor = j <= row ? __fmul_rn(expf(__fsub_rn(total, j < row ? sum[j] : total)), factor) : 0.0f;
        if (of_key) {
            if (part == 0) on_key[j] = factor;
            factor = -factor;
        }
        const float next = __shfl_down_sync(FULL_WARP, factor, 2);
        if (i % 4 == 0) rows[(of_key ? 0 : pairs_of(CHUNK)) + j / 2] = pair_of(factor, next);
    }
}

// What a row begins with: v - exp(G) S0^T k, and exp(G) S0^T q. `rows` are of the key and the query.
static __device__ __forceinline__ void
begin_row(float (&c)[4], const State &state, const uint2 *rows, float decayed, const float (&value)[2]) {
    const int g = threadIdx.x % 32 / 4;
    float small[4] = {};
    c[0] = c[1] = c[2] = c[3] = 0.0f;
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
        u32 a[4], a_rest[4];
        two_rows(a, a_rest, rows + 8 * s, pairs_of(DK));
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
// second ones; `terms` is where the warp's columns begin. `rows` are of -f and a.
template <int PITCH>
static __device__ __forceinline__ void take_in(float (&c)[4], const u8 *terms, int block, const uint2 *rows) {
    u32 a[4], a_rest[4], b[2], b_rest[2];
    two_rows(a, a_rest, rows + BLOCK / 2 * block, pairs_of(CHUNK));
    const u8 *from = terms + (BLOCK * block + threadIdx.x % 16) * PITCH;
    ptx::load_matrices_turned(b, from);
    ptx::load_matrices_turned(b_rest, from + CHUNK * PITCH);
    multiply_one(c, a, a_rest, b, b_rest);
}

// The first two of `c` without what the tokens before `row` of its own block have added to two neighbouring columns,
// `updates[j * stride]`. `on_key` are the chunk's f.
static __device__ __forceinline__ float2
without_own_block(const float (&c)[4], int row, const float *on_key, const float *updates, int stride) {
    const int first = row / BLOCK * BLOCK, count = row % BLOCK;
    float2 rest = make_float2(c[0], c[1]);
    constexpr int AT_ONCE = 5;
#pragma unroll 1
    for (int j = 0; j < count; j += AT_ONCE) {
        float f[AT_ONCE];
        float2 u[AT_ONCE];
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++)
            if (j + k < count) f[k] = -on_key[first + j + k], u[k] = *(const float2 *)(updates + (j + k) * stride);
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++)
            if (j + k < count) rest.x = fmaf(f[k], u[k].x, rest.x), rest.y = fmaf(f[k], u[k].y, rest.y);
    }
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
