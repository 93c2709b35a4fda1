// Keys and values into their pages, rounded to the type they are kept in. KV is 0 for f32, 1 for f16, 2 for q8_0.

#include "pages.cuh"

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
    if (index >= (i64)tokens * kv_heads * pieces) return;
    int piece = (int)(index % pieces), head = (int)(index / pieces % kv_heads), token = (int)(index / pieces / kv_heads);
    i64 row = kept_row(sequences + owners[token] * 8, pages, token, kv_heads, head);
    const float *from = is_value ? values + token * value_token + head * value_head
                                 : keys + token * key_token + head * key_head;
    int i = piece * 32 + (threadIdx.x & 31);
    keep_piece(is_value ? value_pool : key_pool, row, dim, piece, i < dim ? from[i] : 0.0f);
}
