// The gated delta rule for prompts, on tensor cores. `prepare` computes of each chunk what does not depend on the state, factors
// included, all chunks side by side; `scan` goes through the chunks of a sequence. A token's operations are those that
// `chunk.cuh` lists.
//
// A piece is what a step has of one chunk of one sequence. Rows of the chunk that came before the step lie in the slot.
//
// Constants: DK, a multiple of 16 up to 128; DV, a multiple of 16; COLUMNS of S of a block, 32 or 16; STAGES: chunks whose keys,
// factors and, if they are STAGED (1, else 0), queries are in shared memory. Queries that are not come from memory to registers:
// `prepare` leaves them as products take them.

#include "chunk.cuh"

constexpr int THREADS = 256;
constexpr int BLOCKS = CHUNK / BLOCK;
constexpr int COLUMN_PITCH = pitch_of(COLUMNS);
// Tiles of eight columns.
constexpr int TILES = COLUMNS / 8;
constexpr int STEPS = DK / 16;
// Steps that queries are asked for ahead where they are not staged.
constexpr int AHEAD = STEPS < 3 ? STEPS : 3;

struct Piece {
    int sequence, chunk, first, end;
};

// Keys and queries of a piece in both terms: what `prepare` leaves, `[4][CHUNK][DK]`; queries that are not staged
// `[term][block of rows][step of 16 dimensions][lane][4 words]`.
constexpr i64 TILE_BYTES = 4 * CHUNK * DK * 2;

// What it leaves of a piece for each value head, where things are in bytes: both terms of a, of the ten blocks of 16 x 16 tokens that
// are not above the diagonal, row by row, `[block][term][lane][4 words]`; of -f likewise, the six blocks below it; f of those on the
// diagonal in f32, `[block][j][i]`; and of each token exp(G), exp(G_C - G) where the chunk is whole, and beta.
constexpr int BLOCK_BYTES = 2 * 32 * 16;
constexpr int ON_KEYS_AT = 10 * BLOCK_BYTES;
constexpr int DIAGONAL_AT = ON_KEYS_AT + 6 * BLOCK_BYTES;
constexpr int TOKENS_AT = DIAGONAL_AT + CHUNK * BLOCK * 4;
constexpr int FACTOR_BYTES = TOKENS_AT + 3 * CHUNK * 4;

// The word of a fragment a that has dimension `dim`, which is even, of a row, and the one behind it.
static __device__ __forceinline__ int fragment_word(int row, int dim) {
    const int lane = row % 8 * 4 + dim % 8 / 2, word = row % 16 / 8 + dim % 16 / 8 * 2;
    return ((row / 16 * STEPS + dim / 16) * 32 + lane) * 4 + word;
}

// Keys and queries of a chunk in f32, rows apart so that eight of them lie in different banks.
constexpr int ROW = DK + 4;

static __device__ __forceinline__ void load_rows(
    float *to, u8 *tile, const float *from, i64 token_stride, i64 head_offset, const float *ring, int rows,
    const Piece &piece, const int *sequence, bool of_queries
) {
    int border = piece.chunk * CHUNK;
    i64 token0 = (i64)sequence[0] + border - sequence[2];
#pragma unroll 4
    for (int i = threadIdx.x; i < CHUNK * (DK / 2); i += THREADS) {
        int row = i / (DK / 2), dim = i % (DK / 2) * 2;
        float a = 0.0f, b = 0.0f;
        if (row >= piece.first && row < piece.end) {
            const float *at = from + (token0 + row) * token_stride + head_offset + dim;
            a = at[0], b = at[1];
        } else if (row < piece.first && !of_queries) {
            const float *at = ring + (border + row) % rows * DK + dim;
            a = at[0], b = at[1];
        }
        to[row * ROW + dim] = a;
        to[row * ROW + dim + 1] = b;
        Split of = split(a, b);
        u32 *word = (u32 *)tile + (of_queries && !STAGED ? fragment_word(row, dim) : i);
        word[0] = of.high;
        word[CHUNK * DK / 2] = of.low;
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

// `factors[piece][value head]`; `tiles[piece][key head]`; and the sums of the log decay, `sums[T][Hv]`. Block x is a piece, y a key
// head, whose value heads are every `key_heads`-th from it on.
extern "C" __global__ void __launch_bounds__(THREADS) prepare(
    const float *queries, i64 query_token, i64 query_head, const float *keys, i64 key_token, i64 key_head,
    const float *decay, i64 decay_token, const float *beta, i64 beta_token, const float *key_rows, const float *decay_rows,
    float *sums, const int *sequences, const Piece *plan, u8 *factors, u8 *tiles, int key_heads, int value_heads, int rows
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
        uint4 *to = (uint4 *)(factors + ((i64)blockIdx.x * value_heads + value_head) * FACTOR_BYTES);
        for (int i = thread; i < FACTOR_BYTES / 16; i += THREADS) to[i] = ((const uint4 *)shared)[i];
        __syncthreads();
    }
}

// Where things lie in shared memory. Stages come first, factors behind keys and queries.
constexpr int STAGE_ROWS = (STAGED ? 4 : 2) * CHUNK;
constexpr int FACTORS_AT = STAGE_ROWS * KEY_PITCH;
constexpr int STAGE = FACTORS_AT + FACTOR_BYTES;
constexpr int STATE_AT = STAGES * STAGE;                         // [2][DK][COLUMN_PITCH]: both terms of S
constexpr int UPDATES_AT = STATE_AT + 2 * DK * COLUMN_PITCH;     // [2][CHUNK][COLUMN_PITCH], then the updates as S takes them
constexpr int FLOATS_AT = UPDATES_AT + 2 * CHUNK * COLUMN_PITCH; // u in f32, then what `scan` lists
constexpr int REST_PITCH = COLUMNS + 8;

// Asks for what is staged of a piece.
static __device__ __forceinline__ void ask(u8 *to, const u8 *tile, const u8 *factors) {
    constexpr int WORDS = DK / 8;
#pragma unroll
    for (int i = threadIdx.x; i < STAGE_ROWS * WORDS; i += THREADS)
        ptx::copy_16(to + i / WORDS * KEY_PITCH + i % WORDS * 16, tile + 16 * i);
#pragma unroll
    for (int i = threadIdx.x; i < FACTOR_BYTES / 16; i += THREADS) ptx::copy_16(to + FACTORS_AT + 16 * i, factors + 16 * i);
}

static __device__ __forceinline__ void words_of(u32 (&to)[4], const uint4 &from) {
    to[0] = from.x, to[1] = from.y, to[2] = from.z, to[3] = from.w;
}

// All chunks of a sequence, one after the other: block x is an entry of the list (sequence, its first piece), y the value
// head, z the columns. `keep_rows` of `token.cu` follows.
extern "C" __global__ void __launch_bounds__(THREADS, 1) scan(
    const float *values, i64 value_token, i64 value_head, float *out, i64 out_token, i64 out_head, float *matrix,
    float *update_rows, const int *sequences, const int2 *list, const Piece *plan, const u8 *factors, const u8 *tiles,
    int key_heads, int value_heads, int rows, int matrices
) {
    in_turn();
    extern __shared__ __align__(128) u8 shared[];
    float *updates = (float *)(shared + FLOATS_AT); // [CHUNK][COLUMNS]
    float *rest = updates + CHUNK * COLUMNS;        // [BLOCK][REST_PITCH]
    u8 *state_terms = shared + STATE_AT, *update_terms = shared + UPDATES_AT;

    const int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5, g = lane / 4, t = lane % 4;
    const int head = blockIdx.y, from_key_head = head % key_heads, first_column = blockIdx.z * COLUMNS;
    const int2 entry = list[blockIdx.x];
    const int *sequence = sequences + entry.x * 8;
    const int start = sequence[0], len = sequence[1], past = sequence[2];
    const i64 slot = sequence[3];
    const int first_chunk = past / CHUNK, last_chunk = (past + len - 1) / CHUNK;
    float *own_updates = update_rows + (slot * value_heads + head) * rows * DV + first_column;
    auto matrix_of = [&](int index) {
        return matrix + ((slot * matrices + index % matrices) * value_heads + head) * DK * DV + first_column;
    };
    auto tile_of = [&](int index) {
        return tiles + ((i64)(entry.y + index - first_chunk) * key_heads + from_key_head) * TILE_BYTES;
    };
    auto ask_for = [&](u8 *to, int index) {
        ask(to, tile_of(index), factors + ((i64)(entry.y + index - first_chunk) * value_heads + head) * FACTOR_BYTES);
        ptx::copies_made();
    };
    ask_for(shared, first_chunk);
    Piece next_piece = plan[entry.y];

    // S: a warp has 16 dimensions and all columns, as products leave them.
    const bool folds = warp < DK / 16;
    float state[TILES][4];
    auto state_terms_out = [&]() {
#pragma unroll
        for (int n = 0; n < TILES; n++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                Split of = split(state[n][2 * h], state[n][2 * h + 1]);
                u8 *to = state_terms + (16 * warp + g + 8 * h) * COLUMN_PITCH + 2 * (8 * n + 2 * t);
                *(u32 *)to = of.high;
                *(u32 *)(to + DK * COLUMN_PITCH) = of.low;
            }
    };
    if (folds) {
        const float *border = matrix_of(first_chunk);
#pragma unroll
        for (int n = 0; n < TILES; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int column = 8 * n + 2 * t + e % 2;
                bool here = first_chunk > 0 && first_column + column < DV;
                state[n][e] = here ? border[(16 * warp + g + e / 2 * 8) * DV + column] : 0.0f;
            }
        state_terms_out();
    }

    // This thread's places in tiles: rows as they lie, and turned.
    const int straight = lane % 16, straight_words = lane / 16 * 16;
    const int turned_row = lane / 16 * 8 + lane % 8, turned_words = lane / 8 % 2 * 16;
    const int row0 = warp % BLOCKS * BLOCK;

    for (int index = first_chunk; index <= last_chunk; index++) {
        const int first = next_piece.first, end = next_piece.end;
        if (index < last_chunk) next_piece = plan[entry.y + index + 1 - first_chunk];
        const i64 token0 = (i64)start + index * CHUNK - past;
        const u8 *tile = shared + (STAGES == 2 ? (index - first_chunk) % 2 * STAGE : 0), *given = tile + FACTORS_AT;
        const float *diagonal = (const float *)(given + DIAGONAL_AT);
        const float *grown = (const float *)(given + TOKENS_AT), *weights = grown + CHUNK, *beta_of = weights + CHUNK;
        for (int i = thread; i < first * COLUMNS; i += THREADS) {
            const int row = i / COLUMNS, column = i % COLUMNS;
            const float u = first_column + column < DV ? own_updates[(index * CHUNK + row) % rows * DV + column] : 0.0f;
            const Split of = split(u, 0.0f);
            updates[i] = u;
            u8 *to = update_terms + row * COLUMN_PITCH + 2 * column;
            *(u16 *)to = (u16)of.high;
            *(u16 *)(to + CHUNK * COLUMN_PITCH) = (u16)of.low;
        }
        // What comes from memory is asked for before the products.
        float value[TILES][4];
        if (warp < BLOCKS) {
#pragma unroll
            for (int n = 0; n < TILES; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    const int row = row0 + g + e / 2 * 8, column = first_column + 8 * n + 2 * t + e % 2;
                    const bool here = row >= first && row < end && column < DV;
                    value[n][e] = here ? values[(token0 + row) * value_token + head * value_head + column] : 0.0f;
                }
        }
        // Queries that are not staged, some steps ahead.
        uint4 query[AHEAD][2];
        auto ask_query = [&](int step) {
            const uint4 *from = (const uint4 *)(tile_of(index) + TILE_BYTES / 2) + ((warp - BLOCKS) * STEPS + step) * 32 + lane;
            query[step % AHEAD][0] = from[0];
            query[step % AHEAD][1] = from[CHUNK * DK / 8];
        };
        if (!STAGED && warp >= BLOCKS) {
#pragma unroll
            for (int step = 0; step < AHEAD; step++) ask_query(step);
        }
        ptx::copies_wait<0>();
        __syncthreads();
        if (STAGES == 2) {
            if (index < last_chunk) ask_for(shared + (index + 1 - first_chunk) % 2 * STAGE, index + 1);
        }

        // S0^T k for the rows of warps 0 to 3, S0^T q for those of 4 to 7.
        float c[TILES][4] = {}, small[TILES][4] = {};
        {
            const u8 *at = tile + (warp / BLOCKS * 2 * CHUNK + row0 + straight) * KEY_PITCH + straight_words;
            const u8 *state_at = state_terms + straight * COLUMN_PITCH + straight_words;
#pragma unroll(STAGED ? 2 : STEPS)
            for (int dim = 0; dim < DK; dim += 16) {
                u32 a[4], a_rest[4], b[TILES][2], b_rest[TILES][2];
                if (STAGED || warp < BLOCKS) {
                    ptx::load_matrices(a, at + 2 * dim);
                    ptx::load_matrices(a_rest, at + CHUNK * KEY_PITCH + 2 * dim);
                } else {
                    const int step = dim / 16;
                    words_of(a, query[step % AHEAD][0]);
                    words_of(a_rest, query[step % AHEAD][1]);
                    if (step + AHEAD < STEPS) ask_query(step + AHEAD);
                }
#pragma unroll
                for (int n = 0; n < TILES; n += 2) {
                    load_two(b[n], b[n + 1], state_at + dim * COLUMN_PITCH + 16 * n);
                    load_two(b_rest[n], b_rest[n + 1], state_at + (DK + dim) * COLUMN_PITCH + 16 * n);
                }
#pragma unroll
                for (int n = 0; n < TILES; n++) multiply(c[n], small[n], a, a_rest, b[n], b_rest[n]);
            }
        }
#pragma unroll
        for (int n = 0; n < TILES; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int row = row0 + g + e / 2 * 8;
                const float by_state = __fadd_rn(c[n][e], small[n][e]);
                if (warp >= BLOCKS) c[n][e] = __fmul_rn(grown[row], by_state);
                else c[n][e] = row >= first && row < end ? fmaf(-grown[row], by_state, value[n][e]) : 0.0f;
            }

        // Forward substitution, a block of tokens after the other: when its updates are known, all later rows take them in.
        for (int block = 0; BLOCK * block < end; block++) {
            if (BLOCK * (block + 1) > first) {
                if (warp == block) {
                    // A column a lane.
#pragma unroll
                    for (int n = 0; n < TILES; n++)
#pragma unroll
                        for (int h = 0; h < 2; h++)
                            *(float2 *)(rest + (g + 8 * h) * REST_PITCH + 8 * n + 2 * t) =
                                make_float2(c[n][2 * h], c[n][2 * h + 1]);
                    __syncwarp();
                    if (COLUMNS == 32 || lane < COLUMNS) {
                        float left[BLOCK];
#pragma unroll
                        for (int i = 0; i < BLOCK; i++) left[i] = rest[i * REST_PITCH + lane];
#pragma unroll
                        for (int j = 0; j < BLOCK; j++) {
                            const int row = BLOCK * block + j;
                            const float u = row < first ? updates[row * COLUMNS + lane] : __fmul_rn(beta_of[row], left[j]);
                            const Split of = split(u, 0.0f);
                            updates[row * COLUMNS + lane] = u;
                            u8 *to = update_terms + row * COLUMN_PITCH + 2 * lane;
                            *(u16 *)to = (u16)of.high;
                            *(u16 *)(to + CHUNK * COLUMN_PITCH) = (u16)of.low;
#pragma unroll
                            for (int i = j + 1; i < BLOCK; i++) left[i] = fmaf(-diagonal[row * BLOCK + i], u, left[i]);
                        }
                    }
                }
                __syncthreads();
            }
            const int down = warp % BLOCKS;
            if (warp < BLOCKS ? down > block : down >= block) {
                u32 a[4], a_rest[4];
                const int place = warp < BLOCKS ? ON_KEYS_AT / BLOCK_BYTES + down * (down - 1) / 2 : down * (down + 1) / 2;
                const uint4 *words = (const uint4 *)(given + (place + block) * BLOCK_BYTES) + lane;
                words_of(a, words[0]);
                words_of(a_rest, words[32]);
                const u8 *from = update_terms + (BLOCK * block + straight) * COLUMN_PITCH + straight_words;
#pragma unroll
                for (int n = 0; n < TILES; n += 2) {
                    u32 b[2][2], b_rest[2][2];
                    load_two(b[0], b[1], from + 16 * n);
                    load_two(b_rest[0], b_rest[1], from + CHUNK * COLUMN_PITCH + 16 * n);
                    multiply_one(c[n], a, a_rest, b[0], b_rest[0]);
                    multiply_one(c[n + 1], a, a_rest, b[1], b_rest[1]);
                }
            }
        }
        if (warp >= BLOCKS) {
#pragma unroll
            for (int n = 0; n < TILES; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    const int row = row0 + g + e / 2 * 8, column = first_column + 8 * n + 2 * t + e % 2;
                    if (row >= first && row < end && column < DV)
                        out[(token0 + row) * out_token + head * out_head + column] = c[n][e];
                }
        }
        // What the ring keeps of the updates.
        if (past + len - index * CHUNK - end < rows) {
            const int oldest = max(first, past + len - rows - index * CHUNK);
            for (int i = oldest * COLUMNS + thread; i < end * COLUMNS; i += THREADS) {
                const int row = i / COLUMNS, column = i % COLUMNS;
                if (first_column + column < DV) own_updates[(index * CHUNK + row) % rows * DV + column] = updates[i];
            }
        }
        if (end < CHUNK) break;
        __syncthreads();
        // The chunk is folded into S.
        const float decayed = grown[CHUNK - 1];
#pragma unroll
        for (int i = thread; i < CHUNK * COLUMNS / 2; i += THREADS) {
            const int row = i / (COLUMNS / 2), column = i % (COLUMNS / 2) * 2;
            const float2 u = *(const float2 *)(updates + row * COLUMNS + column);
            const Split of = split(__fmul_rn(weights[row], u.x), __fmul_rn(weights[row], u.y));
            u8 *to = update_terms + row * COLUMN_PITCH + 2 * column;
            *(u32 *)to = of.high;
            *(u32 *)(to + CHUNK * COLUMN_PITCH) = of.low;
        }
        __syncthreads();
        if (folds) {
            float folded[TILES][4] = {};
            const u8 *at = tile + turned_row * KEY_PITCH + turned_words + 2 * 16 * warp;
            const u8 *from = update_terms + straight * COLUMN_PITCH + straight_words;
#pragma unroll
            for (int block = 0; block < BLOCKS; block++) {
                u32 a[4], a_rest[4];
                ptx::load_matrices_turned(a, at + BLOCK * block * KEY_PITCH);
                ptx::load_matrices_turned(a_rest, at + (CHUNK + BLOCK * block) * KEY_PITCH);
#pragma unroll
                for (int n = 0; n < TILES; n += 2) {
                    u32 b[2][2], b_rest[2][2];
                    load_two(b[0], b[1], from + BLOCK * block * COLUMN_PITCH + 16 * n);
                    load_two(b_rest[0], b_rest[1], from + (CHUNK + BLOCK * block) * COLUMN_PITCH + 16 * n);
                    multiply_one(folded[n], a, a_rest, b[0], b_rest[0]);
                    multiply_one(folded[n + 1], a, a_rest, b[1], b_rest[1]);
                }
            }
            // Borders that a later step can begin at are kept.
            const bool kept = index + 1 + matrices > (past + len) / CHUNK;
            float *next = matrix_of(index + 1);
#pragma unroll
            for (int n = 0; n < TILES; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    const int column = 8 * n + 2 * t + e % 2;
                    state[n][e] = fmaf(decayed, state[n][e], folded[n][e]);
                    if (kept && first_column + column < DV) next[(16 * warp + g + e / 2 * 8) * DV + column] = state[n][e];
                }
            state_terms_out();
        }
        if (STAGES == 1 && index < last_chunk) {
            __syncthreads();
            ask_for(shared, index + 1);
        }
    }
}
