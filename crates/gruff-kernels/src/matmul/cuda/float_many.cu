// Matrices of plain floats times many columns, on tensor cores.
//
// A block of threads computes ROWS rows of the matrix for COLUMNS rows of x. Runs of 32 values arrive in a ring of stages in shared
// memory: weights as they lie, x in the two terms that `terms.cu` made. A lane reads eight values of a row at once, which two steps of
// `mma` take; those of F32 become terms in its registers. The order of the sums is that of `terms.cuh`, so a result has the bits that
// `float_few.cu` gives.
//
// Constants: WEIGHT; ROWS 64 or 128; COLUMNS 32 to 128; STAGES; ALIGNED (1: all rows begin at multiples of 16 bytes); SLOTS (1: rows
// of x are gathered by expert, as `moe.cu` lists them).
#include "terms.cuh"
#include "tiles.cuh"

constexpr int THREADS = 256;
constexpr int WARPS = THREADS / 32;
// With F32 fewer warps share rows, so that fewer make the same terms.
constexpr int WARPS_ACROSS = COLUMNS == 128 && WEIGHT != 0 ? 4 : 2;
constexpr int WARPS_DOWN = WARPS / WARPS_ACROSS;
// Tiles of 16 rows and of 8 columns of a warp; tiles of columns that are multiplied together, so that products do not wait for each other.
constexpr int DOWN = ROWS / WARPS_DOWN / 16;
constexpr int ACROSS = COLUMNS / WARPS_ACROSS / 8;
constexpr int TOGETHER = 2;
static_assert(DOWN >= 1 && ACROSS % TOGETHER == 0, "tiles of a warp");

// Bytes of a run of a row of weights, and its words of 16 bytes.
constexpr int ROW_BYTES = terms::RUN * terms::WEIGHT_BYTES;
constexpr int ROW_WORDS = ROW_BYTES / 16;
constexpr int STAGE_BYTES = ROWS * ROW_BYTES + COLUMNS / 8 * terms::RUN_BYTES;
// Words that a thread copies of each run.
constexpr int WEIGHT_COPIES = ROWS * ROW_WORDS / THREADS;
constexpr int X_COPIES = COLUMNS / 8 * terms::RUN_BYTES / 16 / THREADS;

struct Input {
    const u8 *terms;
    // What sums of each group of each row are multiplied with, with F16.
    const float *inverses;
    int rows;
    // Rows of the output that share a row of x.
    int share;
};

// Row r of the tile.
__device__ __forceinline__ const u8 *weight_row(const Matrices &matrices, const Tile &tile, int r, i64 row_bytes) {
    const Matrix &matrix = matrices.at[matrix_of_eight(tile, r / 8)];
    return matrix.weights + tile.expert * matrix.matrix_bytes + min(row_of_eight(tile, r / 8) + r % 8, matrix.rows - 1) * row_bytes;
}

// Where word `word` of row r of a stage lies. Lanes that read together have every second word of two rows of F32, or all four of
// two rows: odd rows change neighbours, so that they meet all banks.
__device__ __forceinline__ int word_at(int r, int word) {
    return r * ROW_BYTES + (WEIGHT == 0 ? word ^ (r & 1) : word) * 16;
}

struct Sources {
    const u8 *weights[WEIGHT_COPIES], *x[X_COPIES];
};

__device__ __forceinline__ void fetch(const Sources &from, int run, int runs, int cols, u8 *stage) {
    if (run >= runs) return;
    const int word = threadIdx.x % ROW_WORDS, k = run * terms::RUN + word * (16 / terms::WEIGHT_BYTES);
#pragma unroll
    for (int i = 0; i < WEIGHT_COPIES; i++) {
        u8 *to = stage + word_at((threadIdx.x + i * THREADS) / ROW_WORDS, word);
#if ALIGNED
        // Behind the end of a row lies another's data.
        if (k < cols) copy_16(to, from.weights[i] + (i64)k * terms::WEIGHT_BYTES);
        else *(uint4 *)to = make_uint4(0, 0, 0, 0);
#else
        *(uint4 *)to = terms::gather_word(from.weights[i], k, cols);
#endif
    }
    const ptx::Shared to = ptx::shared_at(stage + ROWS * ROW_BYTES + 16 * threadIdx.x);
#pragma unroll
    for (int i = 0; i < X_COPIES; i++) ptx::copy_16_to(to + 16 * THREADS * i, from.x[i] + (i64)run * terms::RUN_BYTES);
}

// Adds a run to the sums of a warp.
__device__ __forceinline__ void multiply_run(float (&sums)[DOWN][ACROSS][4], const u8 *stage) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    u32 rows[DOWN][2][terms::WEIGHT_TERMS][4];
#pragma unroll
    for (int k = 0; k < DOWN; k++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int r = (warp / WARPS_ACROSS * DOWN + k) * 16 + half * 8 + lane / 4;
            uint4 words[terms::WORDS];
#pragma unroll
            for (int i = 0; i < terms::WORDS; i++) words[i] = *(const uint4 *)(stage + word_at(r, lane % 4 * terms::WORDS + i));
            terms::split_weights(words, rows[k][half]);
        }
    }
    const u8 *columns = stage + ROWS * ROW_BYTES + warp % WARPS_ACROSS * ACROSS * terms::RUN_BYTES + lane * 16;
#pragma unroll
    for (int first = 0; first < ACROSS; first += TOGETHER) {
        u32 x[TOGETHER][2][4];
#pragma unroll
        for (int i = 0; i < TOGETHER; i++) {
#pragma unroll
            for (int term = 0; term < 2; term++) {
                const uint4 words = *(const uint4 *)(columns + (first + i) * terms::RUN_BYTES + term * terms::TERM_BYTES);
                x[i][term][0] = words.x, x[i][term][1] = words.y, x[i][term][2] = words.z, x[i][term][3] = words.w;
            }
        }
#pragma unroll
        for (int step = 0; step < 2; step++) {
#pragma unroll
            for (int product = 0; product < terms::PRODUCTS; product++) {
#pragma unroll
                for (int i = 0; i < TOGETHER; i++) {
#pragma unroll
                    for (int k = 0; k < DOWN; k++) terms::multiply(sums[k][first + i], rows[k][0], rows[k][1], x[i], step, product);
                }
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) float_many(
    Matrices matrices, int count, int what, int cols, Input x, const Batch *batches, const int *order
) {
    extern __shared__ __align__(128) u8 shared[];
    in_turn();
    const Batch batch = batch_of_block(batches);
    if (batch.count == 0) return;
    const Tile tile = tile_of_block(matrices, count, what, batch.expert);

    // Which row of x a column is, and which row of the output.
    int *from = (int *)(shared + STAGES * STAGE_BYTES), *to = from + COLUMNS;
    for (int c = threadIdx.x; c < COLUMNS; c += THREADS) {
        const Column column = column_of(batch, order, x.rows, x.share, c);
        from[c] = column.from, to[c] = column.to;
    }
    __syncthreads();

    const int runs = (cols + terms::RUN - 1) / terms::RUN;
    Sources sources;
#pragma unroll
    for (int i = 0; i < WEIGHT_COPIES; i++) {
        sources.weights[i] = weight_row(matrices, tile, (threadIdx.x + i * THREADS) / ROW_WORDS, (i64)cols * terms::WEIGHT_BYTES);
    }
#pragma unroll
    for (int i = 0; i < X_COPIES; i++) {
        // Word by word as a run of a tile lies: term, row, word.
        const int word = threadIdx.x + i * THREADS, row = from[word / 64 * 8 + word % 32 / 4];
        sources.x[i] = x.terms + (i64)(row / 8) * runs * terms::RUN_BYTES + word / 32 % 2 * terms::TERM_BYTES + row % 8 * (terms::RUN * 2) +
                       word % 4 * 16;
    }

    const int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    const int top = warp / WARPS_ACROSS * DOWN * 16 + lane / 4, left = warp % WARPS_ACROSS * ACROSS * 8 + lane % 4 * 2;
    float totals[DOWN][ACROSS][4] = {}, sums[DOWN][ACROSS][4] = {};
#pragma unroll 1
    for (int run = 0; run < STAGES - 1; run++) {
        fetch(sources, run, runs, cols, shared + run * STAGE_BYTES);
        copies_made();
    }
    int stage = 0;
#pragma unroll 1
    for (int run = 0; run < runs; run++) {
        copies_wait<STAGES - 2>();
        __syncthreads();
        // What was multiplied last has been read by all.
        fetch(sources, run + STAGES - 1, runs, cols, shared + (stage == 0 ? STAGES - 1 : stage - 1) * STAGE_BYTES);
        copies_made();
        const bool ends = run % terms::RUNS == terms::RUNS - 1 || run + 1 == runs;
#if WEIGHT == 1
        // Asked for ahead of the products.
        const int groups = (cols + terms::GROUP - 1) / terms::GROUP;
        float inverses[ACROSS][2] = {};
        if (ends) {
#pragma unroll
            for (int i = 0; i < ACROSS; i++) {
#pragma unroll
                for (int e = 0; e < 2; e++) inverses[i][e] = x.inverses[(i64)from[left + i * 8 + e] * groups + run / terms::RUNS];
            }
        }
#endif
        multiply_run(sums, shared + stage * STAGE_BYTES);
        stage = stage + 1 == STAGES ? 0 : stage + 1;
        if (!ends) continue;
#pragma unroll
        for (int k = 0; k < DOWN; k++) {
#pragma unroll
            for (int i = 0; i < ACROSS; i++) {
#pragma unroll
                for (int e = 0; e < 4; e++) {
#if WEIGHT == 1
                    sums[k][i][e] = __fmul_rn(sums[k][i][e], inverses[i][e % 2]);
#endif
                    totals[k][i][e] = __fadd_rn(totals[k][i][e], sums[k][i][e]);
                    sums[k][i][e] = 0.0f;
                }
            }
        }
    }

    // Eight lanes store 32 bytes of a row of the output.
    const Matrix &matrix = matrices.at[tile.matrix];
    const float scale = scale_of(matrix, tile.expert);
#pragma unroll
    for (int i = 0; i < ACROSS; i++) {
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int row_of_out = to[left + i * 8 + e];
            if (row_of_out < 0) continue;
#pragma unroll
            for (int k = 0; k < DOWN; k++) {
                const int row = tile.row + (tile.glu ? top / 16 * 8 + k * 8 + lane / 4 : top + k * 16);
                const float first = totals[k][i][e], second = totals[k][i][e + 2];
                if (row >= matrix.rows) continue;
                if (tile.glu) {
                    terms::finish_glu(matrices, what, tile.expert, row, row_of_out, first, second);
                } else {
                    finish(matrix, what, scale, row, row_of_out, first);
                    if (row + 8 < matrix.rows) finish(matrix, what, scale, row + 8, row_of_out, second);
                }
            }
        }
    }
}
