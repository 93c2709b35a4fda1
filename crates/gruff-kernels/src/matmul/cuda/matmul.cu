// Packed matrices times many columns, on tensor cores.
//
// A block of threads computes ROWS rows of the matrix for COLUMNS rows of x. The rows go by in halves of groups, the first and the
// second sub-blocks of all lanes (`blocks.cuh`): cells of packed bytes and pieces of x arrive in shared memory while the half before
// is multiplied; meanwhile packed bytes that have come are unpacked there to bfloat16, in pieces as those of x (`pieces.cuh`), so that
// eight rows of a piece are what `ldmatrix` takes.
// Sums of a group of 256 values are a chain of `mma`, from there on all is f32 in the order that `packed.cuh` states, so a result
// has the bits that `matvec.cu` gives.
//
// On cards that have it (sm_90a), blocks of 128 rows and 64 or 128 columns multiply with `wgmma`, whose sums have the same bits.
//
// Constants: WEIGHT; ROWS 64 or 128; COLUMNS 16 to 128; STAGES (halves of groups of x in shared memory, 2 or 3); SLOTS (1: rows of x
// are gathered by expert, as `moe.cu` lists them).
#include "packed.cuh"
#include "tiles.cuh"

#if __CUDA_ARCH_FEAT_SM90_ALL && ROWS == 128 && COLUMNS >= 64
#define BEHIND 1
#else
#define BEHIND 0
#endif

constexpr int THREADS = BEHIND && COLUMNS == 128 ? 512 : 256;
constexpr int WARPS_ACROSS = BEHIND ? THREADS / 256 : COLUMNS >= 128 ? 4 : 2;
constexpr int WARPS_DOWN = THREADS / 32 / WARPS_ACROSS;
// Tiles of 16 rows and of 8 columns of a warp.
constexpr int DOWN = ROWS / WARPS_DOWN / 16;
constexpr int ACROSS = COLUMNS / WARPS_ACROSS / 8;
// Steps of a half.
constexpr int STEPS = 8;
// Strips of a block, and of a warp that unpacks them.
constexpr int STRIPS = ROWS / blocks::STRIP;
constexpr int OWN_STRIPS = STRIPS / (THREADS / 32);
static_assert(OWN_STRIPS * (THREADS / 32) == STRIPS, "warps have as many strips each");

// Bytes of a half of a group of eight rows, in pieces.
constexpr int TILE = STEPS * pieces::STEP;

// Where things lie in shared memory.
constexpr int WEIGHTS_AT = (Weight::TABLE * 4 + 127) / 128 * 128;
constexpr int X_AT = WEIGHTS_AT + 2 * ROWS / 8 * TILE;
constexpr int PACKED_AT = X_AT + STAGES * COLUMNS / 8 * TILE;
constexpr int FROM_AT = PACKED_AT + 2 * STRIPS * CELL;
// At the end results take the place of everything before the rows' numbers.
constexpr int RESULT_PITCH = ROWS + 1;
static_assert(WEIGHTS_AT + COLUMNS * RESULT_PITCH * 4 <= FROM_AT, "results fit");

struct Input {
    const u8 *pieces;
    int rows;
    // Rows of the output that share a row of x.
    int share;
};

// Strip `i` of the tile.
__device__ __forceinline__ const u8 *strip_at(const Matrices &matrices, const Tile &tile, int i, i64 strip_bytes) {
    const Matrix &matrix = matrices.at[matrix_of_eight(tile, i)];
    const int strip = min(row_of_eight(tile, i) / blocks::STRIP, (matrix.rows - 1) / blocks::STRIP);
    return matrix.weights + tile.expert * matrix.matrix_bytes + strip * strip_bytes;
}

// What a thread copies: words of one strip, one of STRIP_LANES threads that do, and pieces of rows of x.
constexpr int STRIP_LANES = THREADS / STRIPS;
constexpr int COPIES = COLUMNS * 2 * STEPS / THREADS;

struct Sources {
    const u8 *strip;
    // In words of 16 bytes.
    int x[COPIES];
};

__device__ __forceinline__ Sources sources(const Matrices &matrices, const Tile &tile, i64 strip_bytes, const u8 *shared) {
    Sources from;
    from.strip = strip_at(matrices, tile, threadIdx.x / STRIP_LANES, strip_bytes);
    const int *rows = (const int *)(shared + FROM_AT);
    const int piece = threadIdx.x / 8 % (2 * STEPS);
#pragma unroll
    for (int k = 0; k < COPIES; k++) {
        const int c = (threadIdx.x + k * THREADS) / (16 * STEPS) * 8 + threadIdx.x % 8;
        from.x[k] = rows[c] + piece * 8;
    }
    return from;
}

__device__ __forceinline__ void fetch_packed(const Sources &from, int group, int cols, u8 *shared) {
    const int lane = threadIdx.x % STRIP_LANES;
    const u8 *cell = from.strip + (i64)group * CELL + 16 * lane;
    const ptx::Shared to = ptx::shared_at(shared + PACKED_AT + (group % 2 * STRIPS + threadIdx.x / STRIP_LANES) * CELL + 16 * lane);
    const int words = (group + 1) * blocks::GROUP <= cols ? CELL / 16 : cell_bytes(lanes_of(cols, group)) / 16;
#pragma unroll
    for (int k = 0; k * STRIP_LANES < CELL / 16; k++) {
        if (k * STRIP_LANES + lane < words) ptx::copy_16_to(to + 16 * STRIP_LANES * k, cell + 16 * STRIP_LANES * k);
    }
}

// Half `half` (of the whole row) of the rows of x, to a stage.
__device__ __forceinline__ void fetch_x(const Input &x, const Sources &from, int half, int stage, u8 *shared) {
    const ptx::Shared to = ptx::shared_at(shared + X_AT + stage * COLUMNS / 8 * TILE + 16 * threadIdx.x);
#pragma unroll
    for (int k = 0; k < COPIES; k++) ptx::copy_16_to(to + 16 * THREADS * k, x.pieces + (i64)(from.x[k] + half * (STEPS * 16)) * 16);
}

// Unpacks half P of a group: of each lane sub-block P.
template <int P>
__device__ __forceinline__ void unpack(int group, int cols, u8 *shared) {
    const int lane = threadIdx.x & 31, first = threadIdx.x / 32 * OWN_STRIPS;
    const u32 *book = (const u32 *)shared;
    const bool whole = (group + 1) * blocks::GROUP <= cols;
    const RowLane at = {lane / 4, lane % 4, whole ? blocks::LANES : lanes_of(cols, group)};
#pragma unroll
    for (int i = first; i < first + OWN_STRIPS; i++) {
        const u8 *cell = shared + PACKED_AT + (group % 2 * STRIPS + i) * CELL;
        const Share share = whole ? load_share<true>(cell, at) : load_share<false>(cell, at);
        u8 *to = shared + WEIGHTS_AT + (P * STRIPS + i) * TILE + lane * 4;
        Factors by[2];
        factors_of<P>(share, at.t, by);
        each<0, 8>([&](auto word) {
            constexpr int I = decltype(word)::value;
            u32 first, second;
            weights_of<P, I>(share, book, by, first, second);
            *(u32 *)(to + I * pieces::STEP) = first;
            *(u32 *)(to + I * pieces::STEP + pieces::HALF) = second;
        });
    }
}

// Which tiles of 16 rows and of 8 columns a warp begins at. With `wgmma` four warps in a row share columns.
__device__ __forceinline__ int first_row_tile() {
    const int warp = threadIdx.x / 32;
    return BEHIND ? warp / 4 / WARPS_ACROSS * 4 + warp % 4 : warp / WARPS_ACROSS * DOWN;
}
__device__ __forceinline__ int first_column_tile() {
    const int warp = threadIdx.x / 32;
    return (BEHIND ? warp / 4 : warp) % WARPS_ACROSS * ACROSS;
}

#if BEHIND
// Begins to add half P of a group to the sums of a warp, the first half to zero; to be waited for.
template <int P>
__device__ __forceinline__ void multiply(float (&sums)[DOWN][ACROSS][4], int stage, const u8 *shared) {
    const u8 *rows = shared + WEIGHTS_AT + P * STRIPS * TILE + threadIdx.x / 128 / WARPS_ACROSS * 8 * TILE;
    const u8 *columns = shared + X_AT + stage * COLUMNS / 8 * TILE + first_column_tile() * TILE;
    const u64 a = ptx::matrix_at(rows, pieces::HALF, TILE), b = ptx::matrix_at(columns, pieces::HALF, TILE);
    float(&flat)[ACROSS * 4] = (float(&)[ACROSS * 4])sums;
    ptx::wgmma_begin();
#pragma unroll
    for (int step = 0; step < STEPS; step++) {
        ptx::wgmma_bf16(flat, ptx::next_step(a, step * pieces::STEP), ptx::next_step(b, step * pieces::STEP), P != 0 || step != 0);
    }
    ptx::wgmma_made();
}
#else
// Adds half P of a group to the sums of a warp.
template <int P>
__device__ __forceinline__ void multiply(float (&sums)[DOWN][ACROSS][4], int stage, const u8 *shared) {
    const int lane = threadIdx.x & 31, matrix = lane / 8, top = 2 * first_row_tile(), left = first_column_tile();
    // Matrices of a step: rows 0 and 8 of the first half, of the second; columns 0 of both halves, columns 8.
    const u8 *rows = shared + WEIGHTS_AT + P * STRIPS * TILE + (top + matrix % 2) * TILE + matrix / 2 * pieces::HALF + lane % 8 * 16;
    const u8 *columns = shared + X_AT + stage * COLUMNS / 8 * TILE + (left + (ACROSS > 1 ? matrix / 2 : 0)) * TILE +
                        matrix % 2 * pieces::HALF + lane % 8 * 16;
#pragma unroll
    for (int step = 0; step < STEPS; step++) {
        u32 a[DOWN][4], b[ACROSS][2];
#pragma unroll
        for (int i = 0; i < ACROSS; i += 2) {
            // Two tiles at once; where there is one, lanes 16 to 31 read it again.
            u32 both[4];
            ptx::load_matrices(both, columns + i * TILE + step * pieces::STEP);
            b[i][0] = both[0], b[i][1] = both[1];
            if (i + 1 < ACROSS) b[i + 1][0] = both[2], b[i + 1][1] = both[3];
        }
#pragma unroll
        for (int k = 0; k < DOWN; k++) ptx::load_matrices(a[k], rows + 2 * k * TILE + step * pieces::STEP);
#pragma unroll
        for (int k = 0; k < DOWN; k++) {
#pragma unroll
            for (int i = 0; i < ACROSS; i++) ptx::mma_bf16_k16(sums[k][i], a[k], b[i]);
        }
    }
}
#endif

// What this thread has copied and written is there for all, and what all have.
__device__ __forceinline__ void arrive() {
    copies_wait<STAGES - 2>();
#if BEHIND
    ptx::publish_shared();
#endif
    __syncthreads();
}

__device__ __forceinline__ void finish_products() {
#if BEHIND
    ptx::wgmma_wait<0>();
#endif
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) matmul(
    Matrices matrices, int count, int what, int cols, int groups, i64 strip_bytes, Input x, const u32 *table, const Batch *batches,
    const int *order
) {
    extern __shared__ __align__(128) u8 shared[];
    in_turn();
    const Batch batch = batch_of_block(batches);
    if (batch.count == 0) return;
    const Tile tile = tile_of_block(matrices, count, what, batch.expert);

    // Where rows of x begin, in words of 16 bytes, and which rows of the output theirs are.
    int *from = (int *)(shared + FROM_AT), *to = from + COLUMNS;
    for (int c = threadIdx.x; c < COLUMNS; c += THREADS) {
        const Column column = column_of(batch, order, x.rows, x.share, c);
        from[c] = column.from / 8 * groups * (pieces::GROUP / 16) + column.from % 8;
        to[c] = column.to;
    }
    u32 *book = (u32 *)shared;
    for (int i = threadIdx.x; i < Weight::TABLE; i += THREADS) book[i] = table[i];
    __syncthreads();

    float totals[DOWN][ACROSS][4] = {};
    const Sources from_where = sources(matrices, tile, strip_bytes, shared);
    // Copies are made STAGES - 1 halves ahead; of packed bytes a group takes two halves.
    const int halves = 2 * groups;
    int stage = 0, ahead = 0;
    const auto fetch_next = [&](int half) {
        if (half < halves) fetch_x(x, from_where, half, ahead, shared);
        ahead = ahead + 1 == STAGES ? 0 : ahead + 1;
        copies_made();
    };
    fetch_packed(from_where, 0, cols, shared);
#pragma unroll
    for (int half = 0; half < STAGES - 1; half++) {
        if (half == 1 && groups > 1) fetch_packed(from_where, 1, cols, shared);
        fetch_next(half);
    }
    copies_wait<STAGES - 2>();
    __syncthreads();
    unpack<0>(0, cols, shared);
    for (int group = 0; group < groups; group++) {
        float sums[DOWN][ACROSS][4] = {};
        // Where products do not run behind, half of the warps multiply first and half unpack first, so that either has something
        // to wait behind.
        const bool early = !BEHIND && threadIdx.x / 32 % 2 == 0;

        arrive();
        // The first half has been unpacked and its x has come; nobody reads any more what is overwritten now.
        if (STAGES == 2 && group + 1 < groups) fetch_packed(from_where, group + 1, cols, shared);
        if (!BEHIND) fetch_next(2 * group + STAGES - 1);
        if (early) unpack<1>(group, cols, shared);
        multiply<0>(sums, stage, shared);
        if (BEHIND) fetch_next(2 * group + STAGES - 1);
        if (!early) unpack<1>(group, cols, shared);
        finish_products();
        stage = stage + 1 == STAGES ? 0 : stage + 1;

        arrive();
        if (STAGES == 3 && group + 2 < groups) fetch_packed(from_where, group + 2, cols, shared);
        if (!BEHIND) fetch_next(2 * group + STAGES);
        if (early && group + 1 < groups) unpack<0>(group + 1, cols, shared);
        multiply<1>(sums, stage, shared);
        if (BEHIND) fetch_next(2 * group + STAGES);
        if (!early && group + 1 < groups) unpack<0>(group + 1, cols, shared);
        finish_products();
        stage = stage + 1 == STAGES ? 0 : stage + 1;
#pragma unroll
        for (int k = 0; k < DOWN; k++) {
#pragma unroll
            for (int i = 0; i < ACROSS; i++) {
#pragma unroll
                for (int e = 0; e < 4; e++) totals[k][i][e] = __fadd_rn(totals[k][i][e], sums[k][i][e]);
            }
        }
    }

    // Results change hands in shared memory, so that rows are written as they lie.
    float *results = (float *)(shared + WEIGHTS_AT);
    const int lane = threadIdx.x & 31, top = first_row_tile() * 16, left = first_column_tile() * 8;
    copies_wait<0>();
    __syncthreads();
#pragma unroll
    for (int i = 0; i < ACROSS; i++) {
#pragma unroll
        for (int k = 0; k < DOWN; k++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                results[(left + i * 8 + lane % 4 * 2 + e % 2) * RESULT_PITCH + top + k * 16 + e / 2 * 8 + lane / 4] = totals[k][i][e] * WEIGHT_UP;
            }
        }
    }
    __syncthreads();
    const Matrix &matrix = matrices.at[tile.matrix];
    const float scale = scale_of(matrix, tile.expert);
    const int step = rows_of(tile);
#pragma unroll 1
    for (int i = threadIdx.x; i < step * COLUMNS; i += THREADS) {
        const int c = i / step, r = i % step, row = tile.row + r;
        if (to[c] < 0 || row >= matrix.rows) continue;
        const float *column = results + c * RESULT_PITCH;
        if (tile.glu) {
            const float *both = column + r / 8 * 16 + r % 8;
            finish_glu(matrices, what, tile.expert, row, to[c], both[0], both[8]);
        } else {
            finish(matrix, what, scale, row, to[c], column[r]);
        }
    }
}
