// The gated delta rule on tensor cores, a token after the other: each is one row of its chunk's forward substitution,
// whatever step it came in, by the operations that `chunk.cuh` lists. A block has a sequence, a value head and COLUMNS
// columns of its state; a warp has eight of them (`row.cuh`).
//
// Constants: DK, a multiple of 16 up to 128; DV, a multiple of 16.

#include "row.cuh"

constexpr int THREADS = 128;
// Columns of S of a block.
constexpr int COLUMNS = 32;
constexpr int COLUMN_PITCH = pitch_of(COLUMNS);

// Where things lie in shared memory, in floats; both terms of the updates come first.
constexpr int FLOATS_AT = 2 * CHUNK * COLUMN_PITCH;
constexpr int KEYS = 0;                        // [CHUNK][ROW]
constexpr int UPDATES = KEYS + CHUNK * ROW;    // [CHUNK][COLUMNS]
constexpr int QUERY = UPDATES + CHUNK * COLUMNS; // [DK]
constexpr int SUM = QUERY + DK;                // [CHUNK]: G
constexpr int ON_KEY = SUM + CHUNK;            // [CHUNK]: f
constexpr int INPUTS = ON_KEY + CHUNK;         // Pairs of the key, then of the query
constexpr int FACTORS = INPUTS + 4 * pairs_of(DK); // Pairs of -f, then of a, zeros behind the token

// An update of one column, in f32 and both terms.
static __device__ __forceinline__ void put_update(u8 *terms, float *updates, int row, int column, float u) {
    const Split of = split(u, 0.0f);
    updates[row * COLUMNS + column] = u;
    u8 *to = terms + row * COLUMN_PITCH + 2 * column;
    *(u16 *)to = (u16)of.high;
    *(u16 *)(to + CHUNK * COLUMN_PITCH) = (u16)of.low;
}

// Block x is an entry of the list (its first word is the sequence), or the sequence where there is no list; y the value
// head, z the columns. `keep` when no row of a ring is needed after its place was taken in the same step; else `keep_rows`
// follows, which reads the decay sums from `sums` `[T, Hv]`.
extern "C" __global__ void __launch_bounds__(THREADS) token(
    const float *queries, i64 query_token, i64 query_head, const float *keys, i64 key_token, i64 key_head,
    const float *values, i64 value_token, i64 value_head, const float *decay, i64 decay_token, const float *beta,
    i64 beta_token, float *out, i64 out_token, i64 out_head, float *matrix, float *key_rows, float *update_rows,
    float *decay_rows, float *sums, const int *sequences, const int2 *list, int key_heads, int value_heads, int rows,
    int matrices, int keep
) {
    in_turn();
    extern __shared__ __align__(128) u8 shared[];
    u8 *terms = shared; // [2][CHUNK][COLUMN_PITCH]
    float *floats = (float *)(shared + FLOATS_AT);
    float *chunk_keys = floats + KEYS, *updates = floats + UPDATES, *query = floats + QUERY;
    float *sum = floats + SUM, *on_key = floats + ON_KEY;
    uint2 *inputs = (uint2 *)(floats + INPUTS), *factors = (uint2 *)(floats + FACTORS);

    const int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5, g = lane / 4, t = lane % 4;
    const int head = blockIdx.y, from_key_head = head % key_heads, first_column = blockIdx.z * COLUMNS;
    const int *sequence = sequences + (list ? list[blockIdx.x].x : blockIdx.x) * 8;
    const int start = sequence[0], len = sequence[1], past = sequence[2];
    const i64 slot = sequence[3];
    const bool writes_keys = keep && blockIdx.z == 0 && head < key_heads;
    const bool writes_sums = blockIdx.z == 0;
    float *own_keys = key_rows + (slot * key_heads + from_key_head) * rows * DK;
    float *own_updates = update_rows + (slot * value_heads + head) * rows * DV + first_column;
    float *own_sums = decay_rows + (slot * value_heads + head) * rows;
    auto matrix_of = [&](int chunk) {
        return matrix + ((slot * matrices + chunk % matrices) * value_heads + head) * DK * DV + first_column + 8 * warp;
    };
    // The columns whose results this lane has: row 0 of the products is in lanes 0 to 3, row 1 in lanes 4 to 7.
    const int own_column = 8 * warp + 2 * t;
    const bool inside = first_column + 8 * warp < DV;

    // What the slot holds: S at the chunk's border, and the rows since.
    int chunk = past / CHUNK, row = past % CHUNK;
    State state;
    auto load_state = [&](bool here) {
        float s[STEPS][4];
        ask_state(s, matrix_of(chunk), here && inside);
        split_state(state, s);
    };
    load_state(chunk > 0);
#pragma unroll 8
    for (int i = thread; i < row * (DK / 4); i += THREADS) {
        const int j = i / (DK / 4), dim = i % (DK / 4) * 4;
        *(float4 *)(chunk_keys + j * ROW + dim) = *(const float4 *)(own_keys + (chunk * CHUNK + j) % rows * DK + dim);
    }
#pragma unroll 4
    for (int i = thread; i < CHUNK * COLUMNS; i += THREADS) {
        const int j = i / COLUMNS, column = i % COLUMNS;
        const bool here = j < row && first_column + column < DV;
        put_update(terms, updates, j, column, here ? own_updates[(chunk * CHUNK + j) % rows * DV + column] : 0.0f);
    }
    if (thread < row) sum[thread] = own_sums[(chunk * CHUNK + thread) % rows];
    __syncthreads();

    for (int i = 0; i < len; i++) {
        const i64 token = start + i;
        const int ring = (past + i) % rows;
        float value[2] = {0.0f, 0.0f};
        if (g == 0 && inside)
            for (int e = 0; e < 2; e++) value[e] = values[token * value_token + head * value_head + first_column + own_column + e];
        const float own_beta = beta[token * beta_token + head];
        for (int dim = 2 * thread; dim < DK; dim += 2 * THREADS) {
            float k[2], q[2];
#pragma unroll
            for (int e = 0; e < 2; e++) {
                k[e] = keys[token * key_token + from_key_head * key_head + dim + e];
                q[e] = queries[token * query_token + from_key_head * query_head + dim + e];
                chunk_keys[row * ROW + dim + e] = k[e];
                query[dim + e] = q[e];
                if (writes_keys) own_keys[ring * DK + dim + e] = k[e];
            }
            inputs[dim / 2] = pair_of(k[0], k[1]);
            inputs[pairs_of(DK) + dim / 2] = pair_of(q[0], q[1]);
        }
        const float total = __fadd_rn(row > 0 ? sum[row - 1] : 0.0f, decay[token * decay_token + head]);
        if (thread == 0) {
            sum[row] = total;
            if (writes_sums) {
                if (keep) own_sums[ring] = total;
                else sums[token * value_heads + head] = total;
            }
        }
        __syncthreads();
        put_factors<THREADS>(factors, on_key, chunk_keys, query, sum, row, total);
        float c[4];
        const float decayed = expf(total);
        begin_row(c, state, inputs, decayed, value);
        __syncthreads();
        const int own_block = row / BLOCK;
        const u8 *own_terms = terms + 16 * warp;
        for (int block = 0; block < own_block; block++) take_in<COLUMN_PITCH>(c, own_terms, block, factors);
        if (g == 0) {
            const float2 rest = without_own_block(c, row, on_key, updates + BLOCK * own_block * COLUMNS + own_column, COLUMNS);
            const float u[2] = {__fmul_rn(own_beta, rest.x), __fmul_rn(own_beta, rest.y)};
#pragma unroll
            for (int e = 0; e < 2; e++) {
                put_update(terms, updates, row, own_column + e, u[e]);
                if (inside) own_updates[ring * DV + own_column + e] = u[e];
            }
        }
        // A warp reads only its own columns.
        __syncwarp();
        take_in<COLUMN_PITCH>(c, own_terms, own_block, factors);
        if (g == 1 && inside)
            for (int e = 0; e < 2; e++)
                out[token * out_token + head * out_head + first_column + own_column + e] = c[e];
        row++;
        if (row == CHUNK) {
            // The chunk is folded into S.
            fold(
                matrix_of(chunk + 1), matrix_of(chunk), chunk > 0, inside, chunk_keys, sum, total, decayed,
                [&](int j, int column) { return updates[j * COLUMNS + 8 * warp + column]; }
            );
            chunk++;
            row = 0;
            if (i + 1 < len) load_state(true);
        }
        __syncthreads();
        if (row == 0)
            for (int at = thread; at < CHUNK * COLUMNS; at += THREADS) put_update(terms, updates, at / COLUMNS, at % COLUMNS, 0.0f);
    }
}
