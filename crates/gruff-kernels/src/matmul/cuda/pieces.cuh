// Activations as products with packed weights read them: bfloat16, in pieces of 16 bytes.
//
// Rows stand in tiles of 8, values in steps of 16, which are what one `mma` multiplies. A step of a tile is two pieces a row:
//
//     [tile][group of 256][step 0..16][half 0..2][row 0..8][8 values]
//
// where a half has, of the step's four words of four values (as packed codes come), the first or last two of each, so that
// lane t of four finds in word t of both pieces what stands against word t of the codes. Rows are completed with zeros to whole
// groups. What is in rows of the last tile that there are none of is undefined: columns of a product do not meet.
#pragma once

#include "common.cuh"

namespace pieces {

// Bytes of a step of a tile, of one of its halves, and of a group.
constexpr int STEP = 256;
constexpr int HALF = 128;
constexpr int GROUP = 16 * STEP;

// Where the first half of a step of a row is.
static __device__ __forceinline__ u8 *step_at(u8 *pieces, int groups, int row, int step) {
    return pieces + ((i64)(row / 8) * groups * 16 + step) * STEP + row % 8 * 16;
}

// Stores four consecutive values, the first of which is number 4 `word`.
static __device__ __forceinline__ void store_word(u8 *pieces, int groups, int row, int word, float a, float b, float c, float d) {
    u8 *to = step_at(pieces, groups, row, word / 4) + word % 4 * 4;
    *(u32 *)to = ptx::floats_to_bf162(a, b);
    *(u32 *)(to + HALF) = ptx::floats_to_bf162(c, d);
}

// Stores one value.
static __device__ __forceinline__ void store_value(u8 *pieces, int groups, int row, int i, float value) {
    u8 *to = step_at(pieces, groups, row, i / 16) + i / 2 % 2 * HALF + i / 4 % 4 * 4 + i % 2 * 2;
    *(u16 *)to = (u16)ptx::floats_to_bf162(value, value);
}

// Stores the zeros behind the `cols` values of a row, which are whole words; every thread of the block comes here.
static __device__ __forceinline__ void complete(u8 *pieces, int groups, int row, int cols) {
    for (int word = cols / 4 + threadIdx.x; word < groups * 64; word += blockDim.x) store_word(pieces, groups, row, word, 0, 0, 0, 0);
}

} // namespace pieces
