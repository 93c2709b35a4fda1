// What the gated delta rule needs of each chunk of a prompt that does not depend on the state (`piece.cuh`), all chunks side by side.
//
// Constants: DK, a multiple of 16 up to 128; whether queries are STAGED (1, else 0).

#include "piece.cuh"

constexpr int THREADS = 256;

// Keys and queries of a chunk in f32, rows apart so that eight of them lie in different banks.
constexpr int ROW = DK + 4;

// Keys or queries of a piece: in f32 to `to`, in both terms to `tile`. Some are asked for before any is waited for, so that there are no
// branches around reads: where there is no row, another one is read.
static __device__ __forceinline__ void load_rows(
    float *to, u8 *tile, const float *from, i64 token_stride, i64 head_offset, const float *ring, int rows,
    const Piece &piece, const int *sequence, bool of_queries
) {
    constexpr int EACH = CHUNK * (DK / 2) / THREADS, AHEAD = EACH < 8 ? EACH : EACH % 8 == 0 ? 8 : 2;
    static_assert(EACH * THREADS == CHUNK * (DK / 2) && EACH % AHEAD == 0, "no thread has a rest");
    const int border = piece.chunk * CHUNK;
    const float *tokens = from + ((i64)sequence[0] + border - sequence[2]) * token_stride + head_offset;
#pragma unroll 1
    for (int begin = 0; begin < EACH; begin += AHEAD) {
        float2 values[AHEAD];
#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            const int i = threadIdx.x + (begin + k) * THREADS, row = i / (DK / 2), dim = i % (DK / 2) * 2;
            const float *at = tokens + min(max(row, piece.first), piece.end - 1) * token_stride;
            if (row < piece.first && !of_queries) at = ring + (border + row) % rows * DK;
            values[k] = make_float2(at[dim], at[dim + 1]);
        }
#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            const int i = threadIdx.x + (begin + k) * THREADS, row = i / (DK / 2), dim = i % (DK / 2) * 2;
            const bool here = row < piece.end && (row >= piece.first || !of_queries);
            const float a = here ? values[k].x : 0.0f, b = here ? values[k].y : 0.0f;
            to[row * ROW + dim] = a;
            to[row * ROW + dim + 1] = b;
            const Split of = split(a, b);
            u32 *word = (u32 *)tile + (of_queries && !STAGED ? fragment_word(row, dim) : i);
            word[0] = of.high;
            word[CHUNK * DK / 2] = of.low;
        }
    }
}

// Dots of this thread's rows with its keys, `ti + 16 a` with `tj + 16 b`, b up to a: 16 x 16 blocks up to the diagonal.
static __device__ __forceinline__ void dots_of(float (&to)[10], const float *rows, const float *keys, int ti, int tj) {
    float dot[4][4][4] = {};
#pragma unroll 4
    for (int dim = 0; dim < DK; dim += 4) {
        float4 x[4], y[4];
#pragma unroll
        for (int a = 0; a < 4; a++) x[a] = *(const float4 *)(rows + (ti + 16 * a) * ROW + dim);
#pragma unroll
        for (int b = 0; b < 4; b++) y[b] = *(const float4 *)(keys + (tj + 16 * b) * ROW + dim);
#pragma unroll
        for (int a = 0; a < 4; a++)
#pragma unroll
            for (int b = 0; b <= a; b++) {
                dot[a][b][0] = fmaf(y[b].x, x[a].x, dot[a][b][0]);
                dot[a][b][1] = fmaf(y[b].y, x[a].y, dot[a][b][1]);
                dot[a][b][2] = fmaf(y[b].z, x[a].z, dot[a][b][2]);
                dot[a][b][3] = fmaf(y[b].w, x[a].w, dot[a][b][3]);
            }
    }
#pragma unroll
    for (int a = 0; a < 4; a++)
#pragma unroll
        for (int b = 0; b <= a; b++) to[a * (a + 1) / 2 + b] = sum_of_four(dot[a][b]);
}

// What a block has in shared memory: keys and queries, in whose place factors are then put together, and sums of the log decay.
constexpr int ROWS_BYTES = 2 * CHUNK * ROW * 4;
constexpr int SUMS_AT = ROWS_BYTES > FACTOR_BYTES ? ROWS_BYTES : FACTOR_BYTES;

// `to_factors[piece][value head]`; `tiles[piece][key head]`; and the sums of the log decay, `sums[T][Hv]`. Block x is a piece, y a key
// head, whose value heads are every `key_heads`-th from it on.
extern "C" __global__ void __launch_bounds__(THREADS) factors(
    const float *queries, i64 query_token, i64 query_head, const float *keys, i64 key_token, i64 key_head,
    const float *decay, i64 decay_token, const float *beta, i64 beta_token, const float *key_rows, const float *decay_rows,
    float *sums, const int *sequences, const Piece *plan, u8 *to_factors, u8 *tiles, int key_heads, int value_heads, int rows
) {
    in_turn();
    extern __shared__ __align__(128) u8 shared[];
    float *k = (float *)shared, *q = k + CHUNK * ROW, *sum = (float *)(shared + SUMS_AT); // [value heads of the key head][CHUNK]: G
    const Piece piece = plan[blockIdx.x];
    const int first = piece.first, end = piece.end, head = blockIdx.y, thread = threadIdx.x, sharing = value_heads / key_heads;
    const int *sequence = sequences + piece.sequence * 8;
    const i64 slot = sequence[3], token0 = (i64)sequence[0] + piece.chunk * CHUNK - sequence[2];
    const float *ring = key_rows + (slot * key_heads + head) * rows * DK;
    u8 *tile = tiles + ((i64)blockIdx.x * key_heads + head) * TILE_BYTES;
    load_rows(k, tile, keys, key_token, head * key_head, ring, rows, piece, sequence, false);
    load_rows(q, tile + TILE_BYTES / 2, queries, query_token, head * query_head, ring, rows, piece, sequence, true);
    for (int i = thread; i < sharing * CHUNK; i += THREADS) {
        const int value_head = head + i / CHUNK * key_heads, row = i % CHUNK;
        float own = 0.0f;
        if (row < first) own = decay_rows[(slot * value_heads + value_head) * rows + (piece.chunk * CHUNK + row) % rows];
        else if (row < end) own = decay[(token0 + row) * decay_token + value_head];
        sum[i] = own;
    }
    __syncthreads();
    for (int i = thread; i < sharing; i += THREADS) {
        float total = first > 0 ? sum[i * CHUNK + first - 1] : 0.0f;
#pragma unroll 16
        for (int row = first; row < end; row++) sum[i * CHUNK + row] = total = __fadd_rn(total, sum[i * CHUNK + row]);
    }
    const int ti = thread / 16, tj = thread % 16;
    float on_keys[10], on_queries[10];
    dots_of(on_keys, k, k, ti, tj);
    dots_of(on_queries, q, k, ti, tj);
    __syncthreads();

    // This thread's words: of two neighbouring j, those of a where tj is even, those of -f where it is odd.
    const bool odd = tj % 2;
    u32 *words = (u32 *)shared + fragment_word(ti, tj / 2 * 2);
    float *diagonal = (float *)(shared + DIAGONAL_AT), *of_tokens = (float *)(shared + TOKENS_AT);
    for (int n = 0; n < sharing; n++) {
        const int value_head = head + n * key_heads;
        const float *own = sum + n * CHUNK;
#pragma unroll
        for (int a = 0; a < 4; a++)
#pragma unroll
            for (int b = 0; b <= a; b++) {
                const int row = BLOCK * a + ti, j = BLOCK * b + tj;
                const bool here = row >= first && row < end;
                const float grown = expf(__fsub_rn(own[row], own[j]));
                const float f = here && j < row ? __fmul_rn(grown, on_keys[a * (a + 1) / 2 + b]) : 0.0f;
                const float weight = here && j <= row ? __fmul_rn(grown, on_queries[a * (a + 1) / 2 + b]) : 0.0f;
                if (a == b) diagonal[(BLOCK * a + tj) * BLOCK + ti] = f;
                const float other = __shfl_xor_sync(FULL_WARP, odd ? weight : -f, 1);
                const Split of = odd ? split(other, -f) : split(weight, other);
                if (odd && a == b) continue;
                u32 *to = words + ((odd ? ON_KEYS_AT / BLOCK_BYTES + a * (a - 1) / 2 : a * (a + 1) / 2) + b) * (BLOCK_BYTES / 4);
                to[0] = of.high;
                to[BLOCK_BYTES / 8] = of.low;
            }
        if (thread < CHUNK) {
            const bool here = thread >= first && thread < end;
            of_tokens[thread] = expf(own[thread]);
            of_tokens[CHUNK + thread] = end == CHUNK ? expf(__fsub_rn(own[CHUNK - 1], own[thread])) : 0.0f;
            of_tokens[2 * CHUNK + thread] = here ? beta[(token0 + thread) * beta_token + value_head] : 0.0f;
            if (here) sums[(token0 + thread) * value_heads + value_head] = own[thread];
        }
        __syncthreads();
        uint4 *to = (uint4 *)(to_factors + ((i64)blockIdx.x * value_heads + value_head) * FACTOR_BYTES);
        for (int i = thread; i < FACTOR_BYTES / 16; i += THREADS) to[i] = ((const uint4 *)shared)[i];
        __syncthreads();
    }
}
