// Blocks of keys and values on their way from their pages to shared memory.
#pragma once

#include "tile.cuh"

// The pages of a block of keys.
struct Pages {
    int at[BLOCK / PAGE];
};

static __device__ __forceinline__ Pages pages_of(const int *own_pages, int first, int last) {
    Pages pages;
#pragma unroll
    for (int half = 0; half < BLOCK / PAGE; half++) pages.at[half] = own_pages[min(first + half * PAGE, last) / PAGE];
    return pages;
}

// Asks for the keys or values `first..` of a block of keys; zeros behind `last`.
template <int DIM>
static __device__ __forceinline__ void
ask(u8 *to, const u8 *pool, const Pages &pages, int kv_heads, int kv_head, int first, int last) {
    constexpr int WORDS = DIM / 8, PITCH = 2 * DIM + 16;
#pragma unroll
    for (int half = 0; half < BLOCK / PAGE; half++) {
        int at = first + half * PAGE;
        const u8 *from = pool + ((i64)pages.at[half] * kv_heads + kv_head) * (PAGE * 2 * DIM);
        u8 *rows = to + half * PAGE * PITCH;
#pragma unroll 2
        for (int i = threadIdx.x; i < PAGE * WORDS; i += THREADS) {
            int key = i / WORDS, word = i % WORDS;
            ptx::copy_16(rows + key * PITCH + 16 * word, from + 16 * i, at + key <= last ? 16 : 0);
        }
    }
}

// The same for packed pages, as they lie there, whole.
template <int DIM>
static __device__ __forceinline__ void ask_packed(u8 *to, const u8 *pool, const Pages &pages, int kv_heads, int kv_head) {
    constexpr int BYTES = PAGE * (DIM / 32) * 34;
#pragma unroll
    for (int half = 0; half < BLOCK / PAGE; half++) {
        const u8 *from = pool + ((i64)pages.at[half] * kv_heads + kv_head) * BYTES;
        for (int i = threadIdx.x * 16; i < BYTES; i += THREADS * 16) ptx::copy_16(to + half * BYTES + i, from + i);
    }
}

// Unpacks a block of keys or values to rows of 16-bit numbers, halves or bfloat16, without their scales, which go to
// `scales`: zeros behind the last of `count` keys, where anything may lie. Eight threads have eight keys of one block of 32
// dimensions, so that what they write meets all banks.
template <int DIM, bool HALVES>
static __device__ __forceinline__ void unpack(u8 *rows, float *scales, const u8 *stage, int count) {
    constexpr int BLOCKS = DIM / 32, PITCH = 2 * DIM + 16;
    for (int i = threadIdx.x / 8; i < BLOCK / 8 * BLOCKS; i += THREADS / 8) {
        const int key = i / BLOCKS * 8 + threadIdx.x % 8, block = i % BLOCKS;
        const u16 *from = (const u16 *)(stage + (key * BLOCKS + block) * 34);
        scales[block * BLOCK + key] = key < count ? half_to_float(from[0]) : 0.0f;
        uint4 *to = (uint4 *)(rows + key * PITCH + block * 64);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            u32 words[4];
#pragma unroll
            for (int k = 0; k < 4; k++) {
                // The number plus 128 as the last byte of 2^23 in f32.
                const u32 both = from[1 + 4 * j + k] ^ 0x8080u;
                const float first = __int_as_float(__byte_perm(both, 0x4b000000u, 0x7540)) - 8388736.0f;
                const float second = __int_as_float(__byte_perm(both, 0x4b000000u, 0x7541)) - 8388736.0f;
                words[k] = HALVES ? ptx::floats_to_half2(first, second) : ptx::floats_to_bf162(first, second);
            }
            to[j] = make_uint4(words[0], words[1], words[2], words[3]);
        }
    }
}
