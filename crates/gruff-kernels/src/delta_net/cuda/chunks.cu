// The gated delta rule for prompts: a chunk at a time, with the sums of every value in the order of `delta.cu`, so that
// a token's bits are the same whichever kernel computes it. DK and DV are the widths of key and value heads.
//
// A piece is what a step has of one chunk of one sequence. Rows of the chunk that came before the step lie in the slot.

#include "common.cuh"

#define CHUNK 64
#define COLUMNS 32
#define THREADS 256
#define WARPS 8

#define DKP ((DK + 3) / 4 * 4)
#define KEY_STRIDE (DKP + 4)
#define QUARTER (DKP / 4)

// Entries of the plan: sequence, chunk, its first row in the step, the row behind its last one.
struct Piece {
    int sequence, chunk, first, end;
};

// Row `row` of a chunk: from the slot's ring or from the step.
static __device__ __forceinline__ float key_value(
    const float *keys, i64 key_token, i64 key_head, const float *ring, const Piece &piece, const int *sequence,
    int head, int rows, int row, int dim
) {
    int position = piece.chunk * CHUNK + row;
    if (row >= piece.end || dim >= DK) return 0.0f;
    if (position < sequence[2]) return ring[position % rows * DK + dim];
    return keys[(i64)(sequence[0] + position - sequence[2]) * key_token + head * key_head + dim];
}

// Rows of keys of a piece to shared memory, zeros behind them.
static __device__ __forceinline__ void load_keys(
    float *to, const float *keys, i64 key_token, i64 key_head, const float *ring, const Piece &piece,
    const int *sequence, int head, int rows
) {
#pragma unroll 8
    for (int i = threadIdx.x; i < CHUNK * DKP; i += THREADS) {
        int row = i / DKP, dim = i % DKP;
        to[row * KEY_STRIDE + dim] = key_value(keys, key_token, key_head, ring, piece, sequence, head, rows, row, dim);
    }
}

// Rows of queries of a piece.
static __device__ __forceinline__ void load_queries(
    float *to, const float *queries, i64 query_token, i64 query_head, const Piece &piece, const int *sequence, int head
) {
    i64 token0 = (i64)sequence[0] + piece.chunk * CHUNK - sequence[2];
    const float *from = queries + token0 * query_token + head * query_head;
#pragma unroll 8
    for (int i = threadIdx.x; i < CHUNK * DKP; i += THREADS) {
        int row = i / DKP, dim = i % DKP;
        bool here = row >= piece.first && row < piece.end && dim < DK;
        to[row * KEY_STRIDE + dim] = here ? from[row * query_token + dim] : 0.0f;
    }
}

// `dots[piece][key head][2][CHUNK][CHUNK]`: k_j . k_i and k_j . q_i, at [j][i] (of keys) and [i][j] (of queries).
extern "C" __global__ void __launch_bounds__(THREADS) chunk_dots(
    const float *queries, i64 query_token, i64 query_head, const float *keys, i64 key_token, i64 key_head,
    const float *key_rows, const int *sequences, const Piece *plan, float *dots, int key_heads, int rows
) {
    in_turn();
    extern __shared__ float4 shared[];
    float *k = (float *)shared, *q = k + CHUNK * KEY_STRIDE;
    Piece piece = plan[blockIdx.x];
    int head = blockIdx.y, thread = threadIdx.x;
    const int *sequence = sequences + piece.sequence * 8;
    const float *ring = key_rows + ((i64)sequence[3] * key_heads + head) * rows * DK;
    load_keys(k, keys, key_token, key_head, ring, piece, sequence, head, rows);
    load_queries(q, queries, query_token, query_head, piece, sequence, head);
    __syncthreads();
    float *to = dots + ((i64)blockIdx.x * key_heads + head) * 2 * CHUNK * CHUNK;
    int ti = thread / 16, tj = thread % 16;
    for (int of_query = 0; of_query < 2; of_query++) {
        const float *rows_i = of_query ? q : k;
        float sums[4][4][4];
#pragma unroll
        for (int a = 0; a < 4; a++)
#pragma unroll
            for (int b = 0; b < 4; b++)
#pragma unroll
                for (int c = 0; c < 4; c++) sums[a][b][c] = 0.0f;
        for (int dim = 0; dim < DKP; dim += 4) {
            float4 x[4], y[4];
#pragma unroll
            for (int a = 0; a < 4; a++) x[a] = *(const float4 *)(rows_i + (ti + 16 * a) * KEY_STRIDE + dim);
#pragma unroll
            for (int b = 0; b < 4; b++) y[b] = *(const float4 *)(k + (tj + 16 * b) * KEY_STRIDE + dim);
#pragma unroll
            for (int a = 0; a < 4; a++)
#pragma unroll
                for (int b = 0; b < 4; b++) {
                    sums[a][b][0] = fmaf(y[b].x, x[a].x, sums[a][b][0]);
                    sums[a][b][1] = fmaf(y[b].y, x[a].y, sums[a][b][1]);
                    sums[a][b][2] = fmaf(y[b].z, x[a].z, sums[a][b][2]);
                    sums[a][b][3] = fmaf(y[b].w, x[a].w, sums[a][b][3]);
                }
        }
#pragma unroll
        for (int a = 0; a < 4; a++)
#pragma unroll
            for (int b = 0; b < 4; b++) {
                const float *s = sums[a][b];
                float dot = __fadd_rn(__fadd_rn(s[0], s[1]), __fadd_rn(s[2], s[3]));
                int i = ti + 16 * a, j = tj + 16 * b;
                if (of_query) to[CHUNK * CHUNK + i * CHUNK + j] = dot;
                else to[j * CHUNK + i] = dot;
            }
    }
}

// Products of the rows in `rows` with the state: 64 x 32 values, eight a thread, in four parts as `delta.cu` adds them.
static __device__ __forceinline__ void by_state(const float *rows, const float *state, float *to, int warp, int lane) {
    float total[8], half[8];
#pragma unroll
    for (int part = 0; part < 4; part++) {
        float sums[8];
#pragma unroll
        for (int r = 0; r < 8; r++) sums[r] = 0.0f;
#if QUARTER % 4 == 0
#pragma unroll 2
        for (int dim = part * QUARTER; dim < (part + 1) * QUARTER; dim += 4) {
            float s[4];
#pragma unroll
            for (int d = 0; d < 4; d++) s[d] = state[(dim + d) * COLUMNS + lane];
#pragma unroll
            for (int r = 0; r < 8; r++) {
                float4 row = *(const float4 *)(rows + (warp * 8 + r) * KEY_STRIDE + dim);
                sums[r] = fmaf(s[0], row.x, sums[r]);
                sums[r] = fmaf(s[1], row.y, sums[r]);
                sums[r] = fmaf(s[2], row.z, sums[r]);
                sums[r] = fmaf(s[3], row.w, sums[r]);
            }
        }
#else
#pragma unroll 4
        for (int dim = part * QUARTER; dim < (part + 1) * QUARTER; dim++) {
            float s = state[dim * COLUMNS + lane];
#pragma unroll
            for (int r = 0; r < 8; r++) sums[r] = fmaf(s, rows[(warp * 8 + r) * KEY_STRIDE + dim], sums[r]);
        }
#endif
#pragma unroll
        for (int r = 0; r < 8; r++) {
            if (part == 0) total[r] = sums[r];
            if (part == 1) total[r] = __fadd_rn(total[r], sums[r]);
            if (part == 2) half[r] = sums[r];
            if (part == 3) total[r] = __fadd_rn(total[r], __fadd_rn(half[r], sums[r]));
        }
    }
#pragma unroll
    for (int r = 0; r < 8; r++) to[(warp * 8 + r) * COLUMNS + lane] = total[r];
}

// All chunks of a sequence, one after the other: block x is the sequence, y the value head, z the columns. Sequence word 5
// is the index of its first piece. Decay sums go to `sums` `[T, Hv]`; `keep.cu` follows.
extern "C" __global__ void __launch_bounds__(THREADS) chunk_scan(
    const float *queries, i64 query_token, i64 query_head, const float *keys, i64 key_token, i64 key_head,
    const float *values, i64 value_token, i64 value_head, const float *decay, i64 decay_token, const float *beta,
    i64 beta_token, float *out, i64 out_token, i64 out_head, float *matrix, const float *key_rows, float *update_rows,
    const float *decay_rows, float *sums, const int *sequences, const Piece *plan, const float *dots, int key_heads,
    int value_heads, int rows, int matrices
) {
    in_turn();
    extern __shared__ float4 shared[];
    float *state = (float *)shared;              // [DKP][COLUMNS]
    float *chunk = state + DKP * COLUMNS;        // [CHUNK][KEY_STRIDE]: keys, then queries, then keys again
    float *updates = chunk + CHUNK * KEY_STRIDE; // [CHUNK][COLUMNS]
    float *key_sums = updates + CHUNK * COLUMNS; // [CHUNK][COLUMNS]
    float *query_sums = key_sums + CHUNK * COLUMNS; // [CHUNK][COLUMNS]
    float *factors = query_sums + CHUNK * COLUMNS;  // [CHUNK][CHUNK]
    float *sum = factors + CHUNK * CHUNK;        // [CHUNK]: G
    float *grown = sum + CHUNK;                  // [CHUNK]: exp(G)
    float *step = grown + CHUNK;                 // [CHUNK]: beta

    int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5;
    int head = blockIdx.y, from_key_head = head % key_heads, first_column = blockIdx.z * COLUMNS;
    bool inside = first_column + lane < DV;
    const int *sequence = sequences + blockIdx.x * 8;
    int start = sequence[0], len = sequence[1], past = sequence[2];
    i64 slot = sequence[3];
    int first_chunk = past / CHUNK, last_chunk = (past + len - 1) / CHUNK;
    const float *own_keys = key_rows + (slot * key_heads + from_key_head) * rows * DK;
    float *own_updates = update_rows + (slot * value_heads + head) * rows * DV + first_column;
    const float *own_sums = decay_rows + (slot * value_heads + head) * rows;
    auto matrix_of = [&](int index) {
        return matrix + ((slot * matrices + index % matrices) * value_heads + head) * DK * DV + first_column;
    };
    {
        const float *border = matrix_of(first_chunk);
        for (int dim = warp; dim < DKP; dim += WARPS)
            state[dim * COLUMNS + lane] = first_chunk > 0 && dim < DK && inside ? border[dim * DV + lane] : 0.0f;
    }
    for (int index = first_chunk; index <= last_chunk; index++) {
        int piece_index = sequence[5] + index - first_chunk;
        Piece piece = plan[piece_index];
        int first = piece.first, end = piece.end, token0 = start + index * CHUNK - past;
        const float *piece_dots = dots + ((i64)piece_index * key_heads + from_key_head) * 2 * CHUNK * CHUNK;
        __syncthreads();
        load_keys(chunk, keys, key_token, key_head, own_keys, piece, sequence, from_key_head, rows);
        for (int row = warp; row < first; row += WARPS)
            updates[row * COLUMNS + lane] = inside ? own_updates[(index * CHUNK + row) % rows * DV + lane] : 0.0f;
        if (thread < CHUNK) {
            bool here = thread >= first && thread < end;
            sum[thread] = thread < first ? own_sums[(index * CHUNK + thread) % rows]
                          : here         ? decay[(i64)(token0 + thread) * decay_token + head]
                                         : 0.0f;
            step[thread] = here ? beta[(i64)(token0 + thread) * beta_token + head] : 0.0f;
        }
        __syncthreads();
        if (thread == 0) {
            float total = first > 0 ? sum[first - 1] : 0.0f;
#pragma unroll 8
            for (int row = first; row < end; row++) {
                total = __fadd_rn(total, sum[row]);
                sum[row] = total;
            }
        }
        __syncthreads();
        if (thread < end) {
            grown[thread] = expf(sum[thread]);
            if (blockIdx.z == 0 && thread >= first) sums[(i64)(token0 + thread) * value_heads + head] = sum[thread];
        }
        // exp(G_i - G_j) k_j . k_i at [j][i].
#pragma unroll 8
        for (int i = thread; i < CHUNK * CHUNK; i += THREADS) {
            int j = i / CHUNK, row = i % CHUNK;
            bool here = j < row && row >= first && row < end;
            factors[i] = here ? __fmul_rn(expf(__fsub_rn(sum[row], sum[j])), piece_dots[i]) : 0.0f;
        }
        by_state(chunk, state, key_sums, warp, lane);
        __syncthreads();
        // Queries take the place of keys.
        load_queries(chunk, queries, query_token, query_head, piece, sequence, from_key_head);
        __syncthreads();
        by_state(chunk, state, query_sums, warp, lane);
        if (warp == 0) {
            // Forward substitution, a column a lane: when an update is known, all later rows take it in.
            float rest[CHUNK];
#pragma unroll
            for (int row = 0; row < CHUNK; row++) {
                bool here = row >= first && row < end;
                float value = here && inside
                                  ? values[(i64)(token0 + row) * value_token + head * value_head + first_column + lane]
                                  : 0.0f;
                rest[row] = here ? fmaf(-grown[row], key_sums[row * COLUMNS + lane], value) : 0.0f;
            }
#pragma unroll
            for (int j = 0; j < CHUNK; j++) {
                float update = j < first ? updates[j * COLUMNS + lane] : __fmul_rn(step[j], rest[j]);
                updates[j * COLUMNS + lane] = update;
#pragma unroll
                for (int row = (j + 1) / 4 * 4; row < CHUNK; row += 4) {
                    float4 f = *(const float4 *)(factors + j * CHUNK + row);
                    if (row > j) rest[row] = fmaf(-f.x, update, rest[row]);
                    if (row + 1 > j) rest[row + 1] = fmaf(-f.y, update, rest[row + 1]);
                    if (row + 2 > j) rest[row + 2] = fmaf(-f.z, update, rest[row + 2]);
                    rest[row + 3] = fmaf(-f.w, update, rest[row + 3]);
                }
            }
        }
        __syncthreads();
        // exp(G_i - G_j) k_j . q_i at [i][j].
#pragma unroll 8
        for (int i = thread; i < CHUNK * CHUNK; i += THREADS) {
            int row = i / CHUNK, j = i % CHUNK;
            bool here = j <= row && row >= first && row < end;
            factors[i] = here ? __fmul_rn(expf(__fsub_rn(sum[row], sum[j])), piece_dots[CHUNK * CHUNK + i]) : 0.0f;
        }
        for (int row = first + warp; row < end; row += WARPS)
            if (inside) own_updates[(index * CHUNK + row) % rows * DV + lane] = updates[row * COLUMNS + lane];
        __syncthreads();
        for (int row = first + warp; row < end; row += WARPS) {
            float result = __fmul_rn(grown[row], query_sums[row * COLUMNS + lane]);
#pragma unroll 8
            for (int j = 0; j <= row; j++) result = fmaf(factors[row * CHUNK + j], updates[j * COLUMNS + lane], result);
            if (inside) out[(i64)(token0 + row) * out_token + head * out_head + first_column + lane] = result;
        }
        if (end < CHUNK) break;
        __syncthreads();
        // The chunk is folded into S.
        load_keys(chunk, keys, key_token, key_head, own_keys, piece, sequence, from_key_head, rows);
        float total = sum[CHUNK - 1];
        for (int row = warp; row < CHUNK; row += WARPS)
            updates[row * COLUMNS + lane] =
                __fmul_rn(expf(__fsub_rn(total, sum[row])), updates[row * COLUMNS + lane]);
        __syncthreads();
        float *next = matrix_of(index + 1);
        float decayed = grown[CHUNK - 1];
        for (int first_dim = warp * 4; first_dim < DKP; first_dim += 4 * WARPS) {
            float folded[4];
#pragma unroll
            for (int d = 0; d < 4; d++) folded[d] = __fmul_rn(decayed, state[(first_dim + d) * COLUMNS + lane]);
#pragma unroll 4
            for (int j = 0; j < CHUNK; j++) {
                float4 k = *(const float4 *)(chunk + j * KEY_STRIDE + first_dim);
                float u = updates[j * COLUMNS + lane];
                folded[0] = fmaf(k.x, u, folded[0]);
                folded[1] = fmaf(k.y, u, folded[1]);
                folded[2] = fmaf(k.z, u, folded[2]);
                folded[3] = fmaf(k.w, u, folded[3]);
            }
#pragma unroll
            for (int d = 0; d < 4; d++) {
                int dim = first_dim + d;
                state[dim * COLUMNS + lane] = folded[d];
                if (inside && dim < DK) next[dim * DV + lane] = folded[d];
            }
        }
    }
}
