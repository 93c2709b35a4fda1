// What the kernels for many columns share, packed (`matmul.cu`) and plain (`float_many.cu`): which ROWS rows of a matrix a block of
// threads multiplies with which COLUMNS rows of x.
//
// Constants: ROWS, a multiple of 16; COLUMNS; SLOTS (1: rows of x are gathered by expert, as `moe.cu` lists them).
#pragma once

#include "product.cuh"

// Rows of x that one expert multiplies: `count` entries of the order from `start` on.
struct Batch {
    int expert, start, count, unused;
};

// Those of this block; none: `count` is 0.
__device__ __forceinline__ Batch batch_of_block(const Batch *batches) {
#if SLOTS
    return batches[blockIdx.x];
#else
    return {0, 0, COLUMNS, 0};
#endif
}

// Which rows of which matrix. For gated units eight rows of the gate and the same eight of up make sixteen, so that a lane holds
// both results.
struct Tile {
    int matrix, row, expert;
    bool glu;
};

// Rows of the output that a tile has.
__device__ __forceinline__ int rows_of(const Tile &tile) { return tile.glu ? ROWS / 2 : ROWS; }

// The tile of this block, of the matrices' rows one after the other.
__device__ __forceinline__ Tile tile_of_block(const Matrices &matrices, int count, int what, int expert) {
    Tile tile;
    tile.expert = expert;
    tile.glu = what >= GLU;
    int rest = blockIdx.y;
    tile.matrix = tile.glu ? 0 : matrix_of(matrices, count, ROWS, rest);
    tile.row = rest * rows_of(tile);
    return tile;
}

// Of eight rows of the tile, number i: which matrix they are of, and the first of them.
__device__ __forceinline__ int matrix_of_eight(const Tile &tile, int i) { return tile.glu ? i % 2 : tile.matrix; }
__device__ __forceinline__ int row_of_eight(const Tile &tile, int i) { return tile.row + (tile.glu ? i / 2 : i) * 8; }

// Which row of x a column of the tile is, one of the last there are if there is none, and which row of the output; none: -1.
struct Column {
    int from, to;
};

// Column c, of so many rows of x, each of which `share` rows of the output have in common.
__device__ __forceinline__ Column column_of(const Batch &batch, const int *order, int rows, int share, int c) {
#if SLOTS
    const int slot = order[batch.start + min(c, batch.count - 1)];
    return {slot / share, c < batch.count ? slot : -1};
#else
    const int asked = blockIdx.x * COLUMNS + c;
    return {min(asked, rows - 1), asked < rows ? asked : -1};
#endif
}
