// Tiles of 16 rows, a warp each, of products with few columns: from packed bytes in shared memory to `mma`.
//
// A tile is two strips of eight rows; the cells of a group of both come to shared memory, some groups ahead. From there each lane
// takes what it has of two rows (`blocks.cuh`) to registers, and all else happens there.
//
// Constants: WEIGHT; TILES of 8 columns; STAGES of a warp's ring; TAIL (1: rows do not end with a whole group; 0).
#pragma once

#include "packed.cuh"

// The most threads: registers are for no more.
constexpr int THREADS = 512;
// Rows of a tile.
constexpr int ROWS = 16;
// Bytes of a group of a tile.
constexpr int STAGE = 2 * CELL;
// Sums from one column of a tile and group to the next, so that a warp's sums meet all banks.
constexpr int SUM_PITCH = 20;

// How the work is cut.
struct Cut {
    int cols, groups;
    i64 strip_bytes;
    // Tiles of all matrices; columns; tiles side by side of a block; groups of a warp between two sums over the block.
    int tiles, columns, abreast, run;
    int matrices, what;
    // With SLOTS: rows of the output that share a row of x; experts of the stack; experts of a token; the first row of the output;
    // values from the ids of a token to the next's.
    int share, experts, used, first;
    i64 id_stride;
    // Values from a row of x to the next, where they are not rounded.
    i64 x_stride;
};

// Where a tile is. Of gated units it has eight rows of the gate and the same eight of up.
struct Tile {
    int matrix, row;
};

__device__ __forceinline__ Tile tile_at(const Matrices &matrices, const Cut &cut, int tile) {
    Tile at;
    const bool glu = cut.what >= GLU;
    at.matrix = glu ? 0 : matrix_of(matrices, cut.matrices, ROWS, tile);
    at.row = tile * (glu ? ROWS / 2 : ROWS);
    return at;
}

// The two strips of a tile. Where a matrix ends with the first, the second is the same.
struct Strips {
    const u8 *at[2];
};

__device__ __forceinline__ Strips strips_of(const Matrices &matrices, const Cut &cut, int tile, int expert) {
    const Tile at = tile_at(matrices, cut, tile);
    const bool glu = cut.what >= GLU;
    Strips strips;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const Matrix &matrix = matrices.at[glu ? i : at.matrix];
        const int strip = min(at.row / blocks::STRIP + (glu ? 0 : i), (matrix.rows - 1) / blocks::STRIP);
        strips.at[i] = matrix.weights + expert * matrix.matrix_bytes + strip * cut.strip_bytes;
    }
    return strips;
}

// What a lane copies of the groups of a tile: where from, and how far the second strip is.
struct Copied {
    const u8 *at;
    i64 apart;
};

__device__ __forceinline__ Copied copied_by_lane(const Strips &strips, int group) {
    return {strips.at[0] + (i64)group * CELL + (threadIdx.x & 31) * 16, strips.at[1] - strips.at[0]};
}

// Copies a group of a tile to a stage, by all lanes of a warp.
__device__ __forceinline__ void fetch(const Copied &from, const u8 *stage, int cols, int group) {
    constexpr int WORDS = CELL / 16;
    const int lane = threadIdx.x & 31, words = TAIL ? cell_bytes(lanes_of(cols, group)) / 16 : WORDS;
    const ptx::Shared to = ptx::shared_at(stage) + lane * 16;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const u8 *at = from.at + i * from.apart;
#pragma unroll
        for (int k = 0; 32 * k < WORDS; k++) {
            if ((!TAIL && 32 * k + 32 <= WORDS) || 32 * k + lane < words) ptx::copy_16_to(to + i * CELL + 512 * k, at + 512 * k);
        }
    }
}

// What a lane has of its two rows of a stage.
__device__ __forceinline__ void load_shares(int cols, int group, const u8 *stage, Share (&shares)[2]) {
    const int lane = threadIdx.x & 31;
    const RowLane at = {lane / 4, lane % 4, TAIL ? lanes_of(cols, group) : blocks::LANES};
#pragma unroll
    for (int i = 0; i < 2; i++) shares[i] = load_share<!TAIL>(stage + i * CELL, at);
}

// The sums of a group in each column. `load(i, step, b)` brings what stands against a step in tile i of columns.
template <class F>
__device__ __forceinline__ void multiply_group(float (&sums)[TILES][4], const Share (&shares)[2], const u32 *book, F &&load) {
    each<0, 2>([&](auto s) {
        constexpr int S = decltype(s)::value;
        Factors by[2][2];
#pragma unroll
        for (int r = 0; r < 2; r++) factors_of<S>(shares[r], threadIdx.x & 3, by[r]);
        each<0, 8>([&](auto word) {
            constexpr int I = decltype(word)::value;
            u32 a[4];
#pragma unroll
            for (int r = 0; r < 2; r++) weights_of<S, I>(shares[r], book, by[r], a[r], a[2 + r]);
#pragma unroll
            for (int i = 0; i < TILES; i++) {
                u32 b[2];
                load(i, 8 * S + I, b);
                ptx::mma_bf16_k16(sums[i], a, b);
            }
        });
    });
}

// What is where results go, of two rows of a column, if they are added to it; asked for before they are there.
__device__ __forceinline__ void
read_before(const Matrices &matrices, const Cut &cut, const Tile &at, int row, i64 column, float (&before)[2]) {
    const Matrix &matrix = matrices.at[at.matrix];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int r = at.row + row + 8 * i;
        before[i] = cut.what == ADD && r < matrix.rows ? matrix.out[column * matrix.out_stride + r] : 0.0f;
    }
}

// Puts two results of a column where they belong: of row `row` of a tile, below 8, and of the eighth behind it.
__device__ __forceinline__ void put(
    const Matrices &matrices, const Cut &cut, const Tile &at, int expert, int row, i64 column, const float (&before)[2], float first,
    float second
) {
    const Matrix &matrix = matrices.at[at.matrix];
    const float scale = scale_of(matrix, expert);
    row += at.row;
    if (cut.what >= GLU) {
        if (row < matrix.rows) finish_glu(matrices, cut.what, expert, row, column, first, second);
    } else {
        if (row < matrix.rows) finish(matrix, cut.what, scale, row, column, before[0], first);
        if (row + 8 < matrix.rows) finish(matrix, cut.what, scale, row + 8, column, before[1], second);
    }
}

// Puts the sums of a tile that a lane has.
__device__ __forceinline__ void
put_sums(const Matrices &matrices, const Cut &cut, const Tile &at, int expert, i64 to, const float (&sums)[TILES][4], float up) {
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int i = 0; i < TILES; i++) {
#pragma unroll
        for (int odd = 0; odd < 2; odd++) {
            const int c = 8 * i + lane % 4 * 2 + odd;
            if (c >= cut.columns) continue;
            float before[2];
            read_before(matrices, cut, at, lane / 4, to + c, before);
            put(matrices, cut, at, expert, lane / 4, to + c, before, sums[i][odd] * up, sums[i][2 + odd] * up);
        }
    }
}
