// A tile of attention on tensor cores (`flash.cu`): its sizes, where its parts lie in shared memory, and which keys it sees.
#pragma once

#include "pieces.cuh"

constexpr int PAGE = 32;
constexpr int BLOCK = 64;
constexpr int SPAN = 128;
constexpr int SPANS = 64;
constexpr int ROWS = 16 * DOWN;
constexpr int THREADS = 32 * DOWN * ACROSS;
constexpr int WARPS = THREADS / 32;

// Bytes from a row to the next in shared memory: an odd number of 16-byte words, so that eight rows meet all banks.
constexpr int KEY_PITCH = 2 * DK + 16;
constexpr int VALUE_PITCH = 2 * DV + 16;
constexpr int WEIGHT_PITCH = 2 * BLOCK + 16;

// Floats from a row of weights to the next, where they are kept in f32: as many bytes as both halves take.
constexpr int WEIGHT_FLOATS = WEIGHT_PITCH / 2;
constexpr bool PACKED = KV == 2;

// Where things lie in shared memory. Of packed pages, keys and values are unpacked to the same place.
constexpr int KEYS_AT = 2 * ROWS * KEY_PITCH;
constexpr int VALUES_AT = PACKED ? KEYS_AT : KEYS_AT + BLOCK * KEY_PITCH;
constexpr int WEIGHTS_AT = KEYS_AT + BLOCK * (PACKED ? KEY_PITCH > VALUE_PITCH ? KEY_PITCH : VALUE_PITCH : KEY_PITCH + VALUE_PITCH);
constexpr int LARGEST_AT = WEIGHTS_AT + (ACROSS > 1 ? 2 * ROWS * WEIGHT_PITCH : 0);
constexpr int FACTORS_AT = LARGEST_AT + ACROSS * ROWS * 4;
// Scales of a block of keys, of its values, `[dim / 32][BLOCK]`, and both as they lie in pages.
constexpr int KEY_SCALES_AT = FACTORS_AT + ROWS * 4;
constexpr int VALUE_SCALES_AT = KEY_SCALES_AT + BLOCK * (DK / 32) * 4;
constexpr int KEY_STAGE_AT = VALUE_SCALES_AT + BLOCK * (DV / 32) * 4;
constexpr int VALUE_STAGE_AT = KEY_STAGE_AT + BLOCK * (DK / 32) * 34;

// Floats from a row of results to the next, where they lie on their way out.
constexpr int RESULT_PITCH = DV + 8;
// Where they lie behind what spans are added up with, of which this is for the most rows of a tile that its last block adds up.
constexpr int MERGED_AT = 16 + 4 * 4 * SPANS * 8;

// Pairs of tiles of eight keys, and of eight dimensions, of a warp.
constexpr int KEY_PAIRS = BLOCK / ACROSS / 16;
constexpr int PAIRS = (DV / 16 + ACROSS - 1) / ACROSS;
constexpr bool ALL_PAIRS = DV / 16 % ACROSS == 0;

// Spans are twice as long with each doubling of the context from SPAN * SPANS keys on.
static __device__ __forceinline__ int span_shift(int position) {
    int eighths = position / (SPAN * SPANS);
    return eighths == 0 ? 0 : 32 - __clz(eighths);
}

// A tile: sequence, first row, rows. Without a plan every sequence has one token.
static __device__ __forceinline__ int4 tile_of(const int4 *plan, int tile, int group) {
    if (plan) return plan[tile];
    const int each = (group + 15) / 16, first = tile % each * 16;
    return make_int4(tile / each, first, min(16, group - first), 0);
}

// The keys of a tile: first row, rows (entries y and z of its plan), and what they see.
struct Seen {
    int first_position, last_position, first_key, first_span, spans, shift;
};

static __device__ __forceinline__ Seen seen_keys(int4 entry, const int *sequence, int group, int window) {
    Seen seen;
    seen.first_position = sequence[2] + entry.y / group;
    seen.last_position = sequence[2] + (entry.y + entry.z - 1) / group;
    seen.first_key = window > 0 ? max(0, seen.first_position - window + 1) : 0;
    seen.shift = span_shift(seen.last_position);
    seen.first_span = seen.first_key / SPAN >> seen.shift;
    seen.spans = (seen.last_position / SPAN >> seen.shift) + 1 - seen.first_span;
    return seen;
}
