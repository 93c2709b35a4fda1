// The gated delta rule, a token after the other: each is one row of its chunk's forward substitution, whatever step it
// came in. A block has a sequence, a value head and COLUMNS columns of its state. DK and DV are the widths of key and
// value heads.

#include "common.cuh"

#define CHUNK 64
#define COLUMNS 32
#define THREADS 128

// Keys are kept with widths of whole vectors, rows apart so that eight of them lie in different banks.
#define DKP ((DK + 3) / 4 * 4)
#define KEY_STRIDE (DKP + 4)
#define QUARTER (DKP / 4)

// Dot product in the order that all kernels of this family keep: four sums, by dimension mod 4.
static __device__ __forceinline__ float dot(const float *a, const float *b) {
    float s0 = 0.0f, s1 = 0.0f, s2 = 0.0f, s3 = 0.0f;
#pragma unroll 8
    for (int i = 0; i < DKP; i += 4) {
        float4 x = *(const float4 *)(a + i), y = *(const float4 *)(b + i);
        s0 = fmaf(x.x, y.x, s0);
        s1 = fmaf(x.y, y.y, s1);
        s2 = fmaf(x.z, y.z, s2);
        s3 = fmaf(x.w, y.w, s3);
    }
    return __fadd_rn(__fadd_rn(s0, s1), __fadd_rn(s2, s3));
}

// `keep` when no row of a ring is needed after its place was taken in the same step; else `keep_rows` follows, which
// reads the decay sums from `sums` `[T, Hv]`.
extern "C" __global__ void __launch_bounds__(THREADS) gated_delta(
    const float *queries, i64 query_token, i64 query_head, const float *keys, i64 key_token, i64 key_head,
    const float *values, i64 value_token, i64 value_head, const float *decay, i64 decay_token, const float *beta,
    i64 beta_token, float *out, i64 out_token, i64 out_head, float *matrix, float *key_rows, float *update_rows,
    float *decay_rows, float *sums, const int *sequences, int key_heads, int value_heads, int rows, int matrices,
    int keep
) {
    in_turn();
    extern __shared__ float4 shared[];
    float *state = (float *)shared;              // [DKP][COLUMNS]
    float *chunk_keys = state + DKP * COLUMNS;   // [CHUNK][KEY_STRIDE]
    float *updates = chunk_keys + CHUNK * KEY_STRIDE; // [CHUNK][COLUMNS]
    float *key = updates + CHUNK * COLUMNS;      // [DKP]
    float *query = key + DKP;                    // [DKP]
    float *sum = query + DKP;                    // [CHUNK]: G
    float *on_key = sum + CHUNK;                 // [CHUNK]: exp(G_i - G_j) k_j . k_i
    float *on_query = on_key + CHUNK;            // [CHUNK]
    float *parts = on_query + CHUNK;             // [2][4][COLUMNS]

    int thread = threadIdx.x, column = thread % COLUMNS, quarter = thread / COLUMNS;
    int head = blockIdx.y, from_key_head = head % key_heads, first_column = blockIdx.z * COLUMNS;
    const int *sequence = sequences + blockIdx.x * 8;
    int start = sequence[0], len = sequence[1], past = sequence[2];
    i64 slot = sequence[3];
    bool writes_keys = keep && blockIdx.z == 0 && head < key_heads;
    bool writes_sums = blockIdx.z == 0;
    bool inside = first_column + column < DV;
    float *own_keys = key_rows + (slot * key_heads + from_key_head) * rows * DK;
    float *own_updates = update_rows + (slot * value_heads + head) * rows * DV + first_column;
    float *own_sums = decay_rows + (slot * value_heads + head) * rows;

    // What the slot holds: S at the chunk's border, and the rows since.
    int chunk = past / CHUNK, row = past % CHUNK;
    const float *border = matrix + ((slot * matrices + chunk % matrices) * value_heads + head) * DK * DV + first_column;
#pragma unroll 16
    for (int dim = quarter; dim < DKP; dim += THREADS / COLUMNS)
        state[dim * COLUMNS + column] = chunk > 0 && dim < DK && inside ? border[dim * DV + column] : 0.0f;
#pragma unroll 8
    for (int i = thread; i < row * DKP; i += THREADS) {
        int j = i / DKP, dim = i % DKP;
        chunk_keys[j * KEY_STRIDE + dim] = dim < DK ? own_keys[(chunk * CHUNK + j) % rows * DK + dim] : 0.0f;
    }
#pragma unroll 8
    for (int j = quarter; j < row; j += THREADS / COLUMNS)
        updates[j * COLUMNS + column] = inside ? own_updates[(chunk * CHUNK + j) % rows * DV + column] : 0.0f;
    if (thread < row) sum[thread] = own_sums[(chunk * CHUNK + thread) % rows];
    __syncthreads();

    for (int i = 0; i < len; i++) {
        int token = start + i, position = past + i, ring = position % rows;
        for (int dim = thread; dim < DKP; dim += THREADS) {
            bool here = dim < DK;
            float k = here ? keys[token * key_token + from_key_head * key_head + dim] : 0.0f;
            key[dim] = k;
            query[dim] = here ? queries[token * query_token + from_key_head * query_head + dim] : 0.0f;
            chunk_keys[row * KEY_STRIDE + dim] = k;
            if (writes_keys && here) own_keys[ring * DK + dim] = k;
        }
        float total = __fadd_rn(row > 0 ? sum[row - 1] : 0.0f, decay[token * decay_token + head]);
        if (thread == 0) {
            sum[row] = total;
            if (writes_sums) {
                if (keep) own_sums[ring] = total;
                else sums[(i64)token * value_heads + head] = total;
            }
        }
        __syncthreads();
        {
            // Two rows of the substitution's matrix, one thread a value.
            int j = thread % CHUNK;
            if (j <= row) {
                bool of_key = thread < CHUNK;
                float factor = expf(__fsub_rn(total, sum[j]));
                float product = dot(chunk_keys + j * KEY_STRIDE, of_key ? key : query);
                (of_key ? on_key : on_query)[j] = __fmul_rn(factor, product);
            }
            float p = 0.0f, q = 0.0f;
#pragma unroll 8
            for (int dim = quarter * QUARTER; dim < (quarter + 1) * QUARTER; dim++) {
                float s = state[dim * COLUMNS + column];
                p = fmaf(s, key[dim], p);
                q = fmaf(s, query[dim], q);
            }
            parts[quarter * COLUMNS + column] = p;
            parts[(4 + quarter) * COLUMNS + column] = q;
        }
        __syncthreads();
        float decayed = expf(total);
        if (quarter == 0) {
            const float *p = parts + column;
            float by_state = __fadd_rn(__fadd_rn(p[0], p[COLUMNS]), __fadd_rn(p[2 * COLUMNS], p[3 * COLUMNS]));
            float value = inside ? values[token * value_token + head * value_head + first_column + column] : 0.0f;
            float rest = fmaf(-decayed, by_state, value);
#pragma unroll 8
            for (int j = 0; j < row; j++) rest = fmaf(-on_key[j], updates[j * COLUMNS + column], rest);
            float update = __fmul_rn(beta[token * beta_token + head], rest);
            updates[row * COLUMNS + column] = update;
            if (inside) own_updates[ring * DV + column] = update;
        }
        float result = 0.0f;
        if (quarter == 1) {
            const float *q = parts + 4 * COLUMNS + column;
            float by_state = __fadd_rn(__fadd_rn(q[0], q[COLUMNS]), __fadd_rn(q[2 * COLUMNS], q[3 * COLUMNS]));
            result = __fmul_rn(decayed, by_state);
#pragma unroll 8
            for (int j = 0; j < row; j++) result = fmaf(on_query[j], updates[j * COLUMNS + column], result);
        }
        __syncthreads();
        if (quarter == 1 && inside) {
            result = fmaf(on_query[row], updates[row * COLUMNS + column], result);
            out[token * out_token + head * out_head + first_column + column] = result;
        }
        row++;
        if (row == CHUNK) {
            // The chunk is folded into S.
            for (int j = quarter; j < CHUNK; j += THREADS / COLUMNS) {
                float weight = expf(__fsub_rn(total, sum[j]));
                // Each thread weighs what it alone reads below only after the barrier.
                updates[j * COLUMNS + column] = __fmul_rn(weight, updates[j * COLUMNS + column]);
            }
            __syncthreads();
            chunk++;
            float *next = matrix + ((slot * matrices + chunk % matrices) * value_heads + head) * DK * DV + first_column;
            for (int dim = quarter; dim < DKP; dim += THREADS / COLUMNS) {
                float folded = __fmul_rn(decayed, state[dim * COLUMNS + column]);
#pragma unroll 4
                for (int j = 0; j < CHUNK; j++)
                    folded = fmaf(chunk_keys[j * KEY_STRIDE + dim], updates[j * COLUMNS + column], folded);
                state[dim * COLUMNS + column] = folded;
                if (inside && dim < DK) next[dim * DV + column] = folded;
            }
            row = 0;
        }
        __syncthreads();
    }
}
