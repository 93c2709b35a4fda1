// How the sums of spans of keys are added up.
#pragma once

#include "tile.cuh"

// 2^difference, exactly, for a difference of at most 0.
static __device__ __forceinline__ float power_of_two(float difference) {
    return difference < -126.0f ? 0.0f : __int_as_float((127 + (int)difference) << 23);
}

// How a span's sums meet those before it: the common base, and both factors.
struct Merge {
    float base, ours, theirs;
};

static __device__ __forceinline__ Merge merge(float ours, float theirs) {
    // A row that sees no key of the span (or none before it) has zeros there.
    if (theirs == -INFINITE) return {ours, 1.0f, 0.0f};
    if (ours == -INFINITE) return {theirs, 0.0f, 1.0f};
    float base = fmaxf(ours, theirs);
    return {base, power_of_two(ours - base), power_of_two(theirs - base)};
}

static __device__ __forceinline__ float merged(const Merge &by, float ours, float theirs) {
    return fmaf(theirs, by.theirs, __fmul_rn(ours, by.ours));
}

// What blocks leave of a tile and a key-value head: `[slots][slot_rows][DV]` sums, and base and sum of weights of each row.
struct Spans {
    const float4 *sums;
    const float2 *stats;
    int count, slot_rows;
};

static __device__ __forceinline__ Spans
spans_of(const float *partials, int tile, int tiles, int kv_head, int kv_heads, int slots, int slot_rows, int count) {
    const i64 slot = ((i64)tile * kv_heads + kv_head) * slots;
    const float *stats = partials + (i64)tiles * kv_heads * slots * slot_rows * DV;
    return {(const float4 *)(partials + slot * slot_rows * DV), (const float2 *)stats + slot * slot_rows, count, slot_rows};
}

// Adds up the spans of `rows` rows of a tile from row `first` on, in order, by all threads of the block, each four
// dimensions, and calls `put(row, dim, results)`. `scratch` holds 4 * SPANS values a row.
template <class Put>
static __device__ __forceinline__ void merge_spans(float *scratch, const Spans &of, int first, int rows, Put &&put) {
    const int thread = threadIdx.x, threads = blockDim.x, spans = of.count;
    float *bases = scratch, *sums = bases + rows * SPANS, *ours = sums + rows * SPANS, *theirs = ours + rows * SPANS;
    for (int i = thread; i < rows * spans; i += threads) {
        const int r = i / spans, span = i % spans;
        const float2 stats = __ldcg(of.stats + span * of.slot_rows + first + r);
        bases[r * SPANS + span] = stats.x;
        sums[r * SPANS + span] = stats.y;
    }
    __syncthreads();
    for (int i = thread; i < rows * spans; i += threads) {
        const int row = i / spans * SPANS, span = i % spans;
        float before = -INFINITE;
#pragma unroll 8
        for (int j = 0; j < span; j++) before = fmaxf(before, bases[row + j]);
        const Merge by = merge(before, bases[row + span]);
        ours[row + span] = by.ours;
        theirs[row + span] = by.theirs;
    }
    __syncthreads();
    for (int i = thread; i < rows * (DV / 4); i += threads) {
        const int r = i / (DV / 4), at = r * SPANS;
        const float4 *from = of.sums + (first + r) * (DV / 4) + i % (DV / 4);
        const int step = of.slot_rows * (DV / 4);
        float4 total = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        float weight = 0.0f;
#pragma unroll 1
        for (int begin = 0; begin < spans; begin += 16) {
            float4 part[16];
#pragma unroll
            for (int j = 0; j < 16; j++)
                if (begin + j < spans) part[j] = __ldcg(from + (begin + j) * step);
#pragma unroll
            for (int j = 0; j < 16; j++) {
                if (begin + j >= spans) break;
                const Merge by = {0.0f, ours[at + begin + j], theirs[at + begin + j]};
                weight = merged(by, weight, sums[at + begin + j]);
                total.x = merged(by, total.x, part[j].x);
                total.y = merged(by, total.y, part[j].y);
                total.z = merged(by, total.z, part[j].z);
                total.w = merged(by, total.w, part[j].w);
            }
        }
        const float inverse = 1.0f / weight;
        const float4 four = make_float4(
            __fmul_rn(total.x, inverse), __fmul_rn(total.y, inverse), __fmul_rn(total.z, inverse), __fmul_rn(total.w, inverse)
        );
        put(first + r, i % (DV / 4) * 4, four);
    }
}
