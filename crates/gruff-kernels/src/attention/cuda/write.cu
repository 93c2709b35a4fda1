// Keys and values into their pages, rounded to the type they are kept in. KV is 0 for f32, 1 for f16, 2 for q8_0.

#include "common.cuh"

#define PAGE 32

// A warp for each 32 values of a head of a token; grid dimension y is 0 for keys, 1 for values.
extern "C" __global__ void write_kv(
    const float *keys, i64 key_token, i64 key_head, u8 *key_pool, int key_dim, const float *values, i64 value_token,
    i64 value_head, u8 *value_pool, int value_dim, const int *sequences, const int *owners, const int *pages,
    int tokens, int kv_heads
) {
    in_turn();
    bool is_value = blockIdx.y == 1;
    int dim = is_value ? value_dim : key_dim, pieces = (dim + 31) / 32;
    i64 index = ((i64)blockIdx.x * blockDim.x + threadIdx.x) / 32;
    int lane = threadIdx.x & 31;
    if (index >= (i64)tokens * kv_heads * pieces) return;
    int piece = (int)(index % pieces), head = (int)(index / pieces % kv_heads), token = (int)(index / pieces / kv_heads);
    const int *sequence = sequences + owners[token] * 8;
    int position = sequence[2] + token - sequence[0];
    i64 page = pages[sequence[4] + position / PAGE];
    i64 row = (page * kv_heads + head) * PAGE + position % PAGE;
    const float *from = is_value ? values + token * value_token + head * value_head
                                 : keys + token * key_token + head * key_head;
    u8 *pool = is_value ? value_pool : key_pool;
    int i = piece * 32 + lane;
#if KV == 2
    float value = from[i];
    float scale = warp_max(fabsf(value)) / 127.0f;
    float inverse = scale == 0.0f ? 0.0f : 1.0f / scale;
    u8 *block = pool + (row * pieces + piece) * 34;
    ((i8 *)block)[2 + lane] = (i8)max(-128, min(127, (int)roundf(value * inverse)));
    if (lane == 0) *(u16 *)block = float_to_half(scale);
#else
    if (i >= dim) return;
#if KV == 0
    ((float *)pool)[row * dim + i] = from[i];
#else
    ((u16 *)pool)[row * dim + i] = float_to_half(from[i]);
#endif
#endif
}
