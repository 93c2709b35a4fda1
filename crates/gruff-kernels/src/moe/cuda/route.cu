// Routing: a warp a token.

#include "common.cuh"

// Values are ordered by (logit, lower id first), as one 64-bit number.
static __device__ __forceinline__ u64 order(float value, u32 id) {
    u32 bits = __float_as_uint(value);
    bits = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return (u64)bits << 32 | (u32)~id;
}

extern "C" __global__ void route(
    const float *logits, i64 logit_stride, int *ids, i64 id_stride, float *weights, i64 weight_stride, int tokens,
    int experts, int used, int renormalize, float scale
) {
    in_turn();
    int token = (blockIdx.x * blockDim.x + threadIdx.x) >> 5, lane = threadIdx.x & 31;
    if (token >= tokens) return;
    const float *row = logits + token * logit_stride;
    float most = -INFINITE;
    for (int e = lane; e < experts; e += 32) most = fmaxf(most, row[e]);
    most = warp_max(most);
    float all = 0.0f;
    for (int e = lane; e < experts; e += 32) all += expf(row[e] - most);
    all = warp_sum(all);
    // Each round takes the largest place below the one before.
    u64 last = ~(u64)0;
    float chosen = 0.0f, own = 0.0f;
    for (int j = 0; j < used; j++) {
        u64 best = 0;
        for (int e = lane; e < experts; e += 32) {
            u64 place = order(row[e], e);
            if (place < last) best = max(best, place);
        }
        for (int step = 16; step > 0; step >>= 1) best = max(best, __shfl_xor_sync(FULL_WARP, best, step));
        last = best;
        int id = (int)~(u32)best;
        // Only a row of nothing but NaN leaves no place.
        if (best == 0) id = 0;
        float weight = expf(row[id] - most);
        chosen += weight;
        if (j % 32 == lane) {
            own = weight;
            ids[token * id_stride + j] = id;
        }
        if (j % 32 == 31 || j == used - 1) {
            int first = j - j % 32;
            if (first + lane <= j) weights[token * weight_stride + first + lane] = own;
        }
    }
    float factor = 1.0f / (renormalize ? chosen : all) * scale;
    __syncwarp();
    for (int j = lane; j < used; j += 32) weights[token * weight_stride + j] *= factor;
}
