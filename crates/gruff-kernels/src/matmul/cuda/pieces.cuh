// Activations as products with packed weights read them: bfloat16, completed with zeros to whole groups of 256 values.
//
// Of a group, lane t of four multiplies values 64 t to 64 t + 63, and each of its 16 steps has four of each lane: values
// 64 t + 4 step to 64 t + 4 step + 3. Many rows are stored in pieces of 16 bytes as `mma` takes them, in tiles of 8 rows,
//
//     [tile][group of 256][step 0..16][half 0..2][row 0..8][lane 0..4][2 values]
//
// where a half has the first or last two of each lane's four. What is in rows of the last tile that there are none of is undefined:
// columns of a product do not meet. Up to 8 rows are "flat" instead, so that a lane finds what it multiplies in two steps side by side,
//
//     [row][group of 256][pair of steps 0..8][lane 0..4][step 0..2][4 values]
//
// The lowest bit of the address, which else is a multiple of 16, says that they are.
#pragma once

#include "common.cuh"

namespace pieces {

// Bytes of a step of a tile, of one of its halves, and of a group of a tile; of a group of a flat row.
constexpr int STEP = 256;
constexpr int HALF = 128;
constexpr int GROUP = 16 * STEP;
constexpr int FLAT_GROUP = 512;

static __device__ __forceinline__ bool is_flat(const u8 *pieces) { return (size_t)pieces & 1; }

// Where the first half of a step of a row is.
static __device__ __forceinline__ u8 *step_at(u8 *pieces, int groups, int row, int step) {
    return pieces + ((i64)(row / 8) * groups * 16 + step) * STEP + row % 8 * 16;
}

// Where a row begins that is flat, and how far behind it four consecutive values are, the first of which is number 4 `word`.
static __device__ __forceinline__ u8 *flat_row(u8 *pieces, int groups, int row) {
    return pieces - 1 + (i64)row * groups * FLAT_GROUP;
}
static __device__ __forceinline__ i64 flat_word(int word) {
    return (i64)(word / 64) * FLAT_GROUP + word % 16 / 2 * 64 + word / 16 % 4 * 16 + word % 2 * 8;
}

// Stores four consecutive values, the first of which is number 4 `word`.
static __device__ __forceinline__ void store_word(u8 *pieces, int groups, int row, int word, float a, float b, float c, float d) {
    const u32 first = ptx::floats_to_bf162(a, b), second = ptx::floats_to_bf162(c, d);
    if (is_flat(pieces)) {
        *(uint2 *)(flat_row(pieces, groups, row) + flat_word(word)) = make_uint2(first, second);
    } else {
        u8 *to = step_at(pieces, groups, row, word / 64 * 16 + word % 16) + word / 16 % 4 * 4;
        *(u32 *)to = first;
        *(u32 *)(to + HALF) = second;
    }
}

// Stores one value.
static __device__ __forceinline__ void store_value(u8 *pieces, int groups, int row, int i, float value) {
    const int word = i / 4;
    u8 *to = is_flat(pieces) ? flat_row(pieces, groups, row) + flat_word(word) + i % 4 * 2
                             : step_at(pieces, groups, row, word / 64 * 16 + word % 16) + i / 2 % 2 * HALF + word / 16 % 4 * 4 + i % 2 * 2;
    *(u16 *)to = (u16)ptx::floats_to_bf162(value, value);
}

// Stores the zeros behind the `cols` values of a row, which are whole words; every thread of the block comes here.
static __device__ __forceinline__ void complete(u8 *pieces, int groups, int row, int cols) {
#pragma unroll 1
    for (int word = cols / 4 + threadIdx.x; word < groups * 64; word += blockDim.x) store_word(pieces, groups, row, word, 0, 0, 0, 0);
}

} // namespace pieces
