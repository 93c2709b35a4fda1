// The gated delta rule for prompts, on tensor cores: goes through the chunks of a sequence, of which `factors.cu` has computed what
// does not depend on the state (`piece.cuh`). A token's operations are those that `chunk.cuh` lists.
//
// Constants: DK, a multiple of 16 up to 128; DV, a multiple of 16; COLUMNS of S of a block, 32 or 16; STAGES: chunks whose keys,
// factors and, if they are STAGED (1, else 0), queries are in shared memory. Queries that are not come from memory to registers.

#include "piece.cuh"

constexpr int THREADS = 256;
constexpr int COLUMN_PITCH = pitch_of(COLUMNS);
// Tiles of eight columns.
constexpr int TILES = COLUMNS / 8;
// Steps that queries are asked for ahead where they are not staged.
constexpr int AHEAD = STEPS < 3 ? STEPS : 3;

// Where things lie in shared memory. Stages come first, factors behind keys and queries.
constexpr int STAGE_ROWS = (STAGED ? 4 : 2) * CHUNK;
constexpr int FACTORS_AT = STAGE_ROWS * KEY_PITCH;
constexpr int STAGE = FACTORS_AT + FACTOR_BYTES;
constexpr int STATE_AT = STAGES * STAGE;                         // [2][DK][COLUMN_PITCH]: both terms of S
constexpr int UPDATES_AT = STATE_AT + 2 * DK * COLUMN_PITCH;     // [2][CHUNK][COLUMN_PITCH], then the updates as S takes them
constexpr int FLOATS_AT = UPDATES_AT + 2 * CHUNK * COLUMN_PITCH; // u in f32, then what `scan` lists
constexpr int REST_PITCH = COLUMNS + 8;

// Calls f with a thread's share of 0 .. COUNT, one of SHARES: known in number, so that it costs no comparisons.
template <int COUNT, int SHARES, class F>
static __device__ __forceinline__ void share(int thread, F &&f) {
#pragma unroll
    for (int k = 0; k < (COUNT + SHARES - 1) / SHARES; k++) {
        const int i = thread + k * SHARES;
        if ((k + 1) * SHARES <= COUNT || i < COUNT) f(i);
    }
}

// Asks for what is staged of a piece, by SHARES threads.
template <int SHARES>
static __device__ __forceinline__ void ask(u8 *to, const u8 *tile, const u8 *factors, int thread) {
    constexpr int WORDS = DK / 8;
    share<STAGE_ROWS * WORDS, SHARES>(thread, [&](int i) {
        ptx::copy_16(to + i / WORDS * KEY_PITCH + i % WORDS * 16, tile + 16 * i);
    });
    share<FACTOR_BYTES / 16, SHARES>(thread, [&](int i) { ptx::copy_16(to + FACTORS_AT + 16 * i, factors + 16 * i); });
    ptx::copies_made();
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
    auto factors_of = [&](int index) {
        return factors + ((i64)(entry.y + index - first_chunk) * value_heads + head) * FACTOR_BYTES;
    };
    ask<THREADS>(shared, tile_of(first_chunk), factors_of(first_chunk), thread);
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
        float value[TILES][4] = {};
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
        // Of keys: what is left of the value, zeros where there is no token; of queries: what the result begins with. Without
        // branches, in which each value would wait for its own.
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int row = row0 + g + 8 * h;
            const float grown_by = grown[row];
            const bool of_key = warp < BLOCKS, here = row >= first && row < end;
#pragma unroll
            for (int n = 0; n < TILES; n++)
#pragma unroll
                for (int e = 2 * h; e < 2 * h + 2; e++) {
                    const float by_state = __fadd_rn(c[n][e], small[n][e]);
                    const float left = fmaf(-grown_by, by_state, value[n][e]), begun = __fmul_rn(grown_by, by_state);
                    c[n][e] = !of_key ? begun : here ? left : 0.0f;
                }
        }

        // The next chunk, by the warps of queries: the others are waited for from here on.
        if (STAGES == 2 && index < last_chunk && warp >= BLOCKS) {
            u8 *to = shared + (index + 1 - first_chunk) % 2 * STAGE;
            ask<THREADS / 2>(to, tile_of(index + 1), factors_of(index + 1), thread - THREADS / 2);
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
        share<CHUNK * COLUMNS / 2, THREADS>(thread, [&](int i) {
            const int row = i / (COLUMNS / 2), column = i % (COLUMNS / 2) * 2;
            const float2 u = *(const float2 *)(updates + row * COLUMNS + column);
            const Split of = split(__fmul_rn(weights[row], u.x), __fmul_rn(weights[row], u.y));
            u8 *to = update_terms + row * COLUMN_PITCH + 2 * column;
            *(u32 *)to = of.high;
            *(u32 *)(to + CHUNK * COLUMN_PITCH) = of.low;
        });
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
            ask<THREADS>(shared, tile_of(index + 1), factors_of(index + 1), thread);
        }
    }
}
