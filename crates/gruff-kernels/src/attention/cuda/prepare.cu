// Queries, keys and values on their way to attention, a warp a head of a token: norms of queries and keys where the model has
// them, rotation, and keys and values into their pages. Bit for bit `rms_norm`, `rope` and `write_kv` one after the other.
// Queries change in place; keys and values are only read.
//
// Constants: DK, at most 1024; DV; KV as in pages.cuh.

#include "pages.cuh"
#include "rope.cuh"

constexpr int WARPS = 4;

extern "C" __global__ void __launch_bounds__(32 * WARPS) prepare(
    float *queries, i64 query_token, i64 query_head, const float *keys, i64 key_token, i64 key_head, const float *values,
    i64 value_token, i64 value_head, u8 *key_pool, u8 *value_pool, const float *query_norm, const float *key_norm, float eps,
    const float *table, i64 table_token, i64 table_part, int half, int interleaved, const int *sequences, const int *owners,
    const int *pages, int tokens, int heads, int kv_heads
) {
    ptx::let_next_kernel_begin();
    constexpr int PIECES = (DK + 31) / 32;
    __shared__ float rows[WARPS][DK];
    const int lane = threadIdx.x & 31, warp = threadIdx.x / 32, each = heads + 2 * kv_heads;
    const u32 index = blockIdx.x * WARPS + warp;
    const int token = index / each, which = index % each;
    const bool is_key = which >= heads;
    // Weights are nobody's result.
    const float *norm = which >= heads + kv_heads ? 0 : is_key ? key_norm : query_norm;
    float by[PIECES];
#pragma unroll
    for (int i = 0; i < PIECES; i++) by[i] = norm && (DK % 32 == 0 || 32 * i + lane < DK) ? norm[32 * i + lane] : 0.0f;
    // Nor are tables, which the host has written.
    const int head = which - (which >= heads + kv_heads ? heads + kv_heads : is_key ? heads : 0);
    i64 kept = 0;
    if (is_key && token < tokens) kept = kept_row(sequences + owners[token] * 8, pages, token, kv_heads, head);
    ptx::wait_for_kernel_before();
    if (token >= tokens) return;
    if (which >= heads + kv_heads) {
        const float *from = values + token * value_token + head * value_head;
#pragma unroll
        for (int piece = 0; piece < (DV + 31) / 32; piece++) {
            const int dim = 32 * piece + lane;
            keep_piece(value_pool, kept, DV, piece, DV % 32 == 0 || dim < DV ? from[dim] : 0.0f);
        }
        return;
    }
    const float *from = is_key ? keys + token * key_token + head * key_head : queries + token * query_token + head * query_head;
    float *row = rows[warp], x[PIECES];
#pragma unroll
    for (int i = 0; i < PIECES; i++) x[i] = DK % 32 == 0 || 32 * i + lane < DK ? from[32 * i + lane] : 0.0f;
    if (norm) {
        float squares = 0.0f;
#pragma unroll
        for (int i = 0; i < PIECES; i++)
            if (DK % 32 == 0 || 32 * i + lane < DK) squares = fmaf(x[i], x[i], squares);
        const float factor = 1.0f / sqrtf(warp_sum(squares) / (float)DK + eps);
#pragma unroll
        for (int i = 0; i < PIECES; i++)
            if (DK % 32 == 0 || 32 * i + lane < DK) x[i] = x[i] * factor * by[i];
    }
#pragma unroll
    for (int i = 0; i < PIECES; i++)
        if (DK % 32 == 0 || 32 * i + lane < DK) row[32 * i + lane] = x[i];
    __syncwarp();
    const float *turn = table + token * table_token;
    for (int j = lane; j < half; j += 32) {
        float *pair = row + (interleaved ? 2 * j : j), *other = pair + (interleaved ? 1 : half);
        const float2 by = turned(*pair, *other, turn[j], turn[table_part + j]);
        *pair = by.x;
        *other = by.y;
    }
    __syncwarp();
    if (is_key) {
#pragma unroll
        for (int piece = 0; piece < PIECES; piece++) {
            const int dim = 32 * piece + lane;
            keep_piece(key_pool, kept, DK, piece, DK % 32 == 0 || dim < DK ? row[dim] : 0.0f);
        }
    } else {
        float *to = queries + token * query_token + head * query_head;
        for (int dim = lane; dim < DK; dim += 32) to[dim] = row[dim];
    }
}
