// What prompts have of a chunk before its state is known: `factors.cu` leaves it, `scan.cu` reads it.
//
// A piece is what a step has of one chunk of one sequence. Rows of the chunk that came before the step lie in the slot.
//
// Constants: DK; whether queries are STAGED, which `scan.cu` explains.
#pragma once

#include "chunk.cuh"

constexpr int BLOCKS = CHUNK / BLOCK;
constexpr int STEPS = DK / 16;

struct Piece {
    int sequence, chunk, first, end;
};

// Keys and queries of a piece for each key head, in both terms: `[4][CHUNK][DK]`; queries that are not staged
// `[term][block of rows][step of 16 dimensions][lane][4 words]`.
constexpr i64 TILE_BYTES = 4 * CHUNK * DK * 2;

// Factors of a piece for each value head, where things are in bytes: both terms of a, of the ten blocks of 16 x 16 tokens that are not
// above the diagonal, row by row, `[block][term][lane][4 words]`; of -f likewise, the six blocks below it; f of those on the
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
