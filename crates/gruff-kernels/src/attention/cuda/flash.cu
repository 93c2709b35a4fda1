// Attention over pages of halves or of q8_0, on tensor cores. A block of threads has a key-value head and a tile of up to ROWS rows
// (tokens of one sequence times the heads of the group); it works through BLOCK keys at a time, with softmax online.
//
// A row's bits are the same in any tile and with any number of warps:
// - Each sum is one chain of `mma.sync`, over keys in order; each score two, over dimensions. Queries and weights enter as two
//   halves each (22 bits), of which scores add up the products apart; keys and values are halves, sums are f32. The sum of
//   weights is a product with ones.
// - What scores are taken relative to (`base`) is an integer power of two at least 2^-10 of the largest, so that a change
//   multiplies by a power of two, which is exact. A block of keys that a row does not see changes nothing.
// - Keys form spans of SPAN << `span_shift(position)`, at most SPANS of them. A span is added up from zero, and spans are
//   added in order: here, or, where parts of a tile's keys are given to several blocks, by `combine`.
//
// Pages of q8_0 are asked for as they are. Keys become halves, each the number in its block, and a score adds up the blocks'
// sums times their scales, in order. Values become bfloat16 likewise; weights are multiplied by the scale of the value's
// block, and enter as two bfloat16 each (16 bits).
//
// Constants: KV, 1 for f16, 2 for q8_0; DK, DV, multiples of 16, for q8_0 of 32; DOWN groups of 16 rows; ACROSS warps that share a group: each has a share of a
// block's keys for the scores, and a share of the dimensions for the sums.

#include "keys.cuh"
#include "queries.cuh"
#include "results.cuh"
#include "spans.cuh"

constexpr float LOG2_E = 1.4426950408889634f;

// A word of two halves, and the word of what they lack.
static __device__ __forceinline__ void split(float first, float second, u32 &high, u32 &low) {
    high = ptx::floats_to_half2(first, second);
    float2 rounded = half2_to_float2(high);
    low = ptx::floats_to_half2(__fadd_rn(first, -rounded.x), __fadd_rn(second, -rounded.y));
}

// The same of two bfloat16.
static __device__ __forceinline__ void split_bf16(float first, float second, u32 &high, u32 &low) {
    high = ptx::floats_to_bf162(first, second);
    low = ptx::floats_to_bf162(
        __fadd_rn(first, -bf16_to_float((u16)high)), __fadd_rn(second, -bf16_to_float((u16)(high >> 16)))
    );
}

// The positions of a tile have one span shift. `splits` blocks share a tile's spans; from two spans on they leave each
// span's sums in `partials` `[tile][kv head]` as `Spans` has them, statistics behind all sums. The last block to do so adds
// them up, which it sees by `arrivals` `[tile][kv head]`, zeros before and after; where there are none, `combine` follows.
extern "C" __global__ void __launch_bounds__(THREADS) flash(
    const float *queries, i64 query_token, i64 query_head, const u8 *key_pool, const u8 *value_pool, float *out,
    i64 out_token, i64 out_head, const float *gate, i64 gate_token, i64 gate_head, const int *sequences, const int *pages,
    const int4 *plan, float *partials, u32 *arrivals, int kv_heads, int group, float scale, int window, float cap, int splits,
    int slots, int slot_rows, u8 *pieces, int groups
) {
    ptx::let_next_kernel_begin();
    const Results results = {out, out_token, out_head, gate, gate_token, gate_head, pieces, groups};
    extern __shared__ __align__(128) u8 shared[];
    const int kv_head = blockIdx.x % kv_heads, part = blockIdx.x / kv_heads % splits;
    const int tile = blockIdx.x / kv_heads / splits, tiles = gridDim.x / kv_heads / splits;
    const int4 entry = tile_of(plan, tile, group);
    const int *sequence = sequences + entry.x * 8;
    const int start = sequence[0], past = sequence[2];
    const int *own_pages = pages + sequence[4];
    const Seen seen = seen_keys(entry, sequence, group, window);
    const bool partial = splits > 1 && seen.spans > 1;

    // This block's spans and blocks of keys.
    const int each = (seen.spans + splits - 1) / splits;
    const int first_span = seen.first_span + part * each;
    const int end_span = min(first_span + each, seen.first_span + seen.spans);
    const int span_keys = SPAN << seen.shift;
    const int first_block = max(first_span * span_keys, seen.first_key) / BLOCK;
    const int last_block = min(end_span * span_keys - 1, seen.last_position) / BLOCK;
    // Pages of the next block of keys that is asked for.
    Pages next = pages_of(own_pages, first_block * BLOCK, seen.last_position);
    // Keys and values may come near already, all but those of this step.
    if (first_span < end_span && threadIdx.x < 2 * (BLOCK / PAGE)) {
        constexpr int KEY_BYTES = PACKED ? PAGE * (DK / 32) * 34 : PAGE * 2 * DK, VALUE_BYTES = PACKED ? PAGE * (DV / 32) * 34 : PAGE * 2 * DV;
        const i64 at = (i64)(threadIdx.x % 2 ? next.at[1] : next.at[0]) * kv_heads + kv_head;
        if (threadIdx.x < 2) ptx::bring_near(key_pool + at * KEY_BYTES, KEY_BYTES);
        else ptx::bring_near(value_pool + at * VALUE_BYTES, VALUE_BYTES);
    }
    ptx::wait_for_kernel_before();
    if (kv_head == 0 && part == 0) results.complete(entry, start, group, kv_heads * group);
    if (first_span >= end_span) return;

    u8 *keys = shared + KEYS_AT, *values = shared + VALUES_AT;
    auto ask_keys = [&](int at) {
        if constexpr (PACKED) ask_packed<DK>(shared + KEY_STAGE_AT, key_pool, next, kv_heads, kv_head);
        else ask<DK>(keys, key_pool, next, kv_heads, kv_head, at, seen.last_position);
    };
    auto ask_values = [&](int at) {
        if constexpr (PACKED) ask_packed<DV>(shared + VALUE_STAGE_AT, value_pool, next, kv_heads, kv_head);
        else ask<DV>(values, value_pool, next, kv_heads, kv_head, at, seen.last_position);
        // Behind keys and values of a block come those of the next.
        next = pages_of(own_pages, at + BLOCK, seen.last_position);
    };
    const int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    const Queries rows = {queries, query_token, query_head, entry, start, kv_head * group, group};
    Query query = rows.row(warp);
    ask_keys(first_block * BLOCK);
    ptx::copies_made();
    ask_values(first_block * BLOCK);
    ptx::copies_made();
#pragma unroll 1
    for (int r = warp; r < entry.z; r += WARPS) {
        const Query behind = rows.row(r + WARPS);
        put_query(shared, r, query, scale);
        query = behind;
    }
    put_no_queries(shared, entry.z);
    // Long before they are needed, where registers are plenty.
    const Leaving leaving = {results, entry, start, kv_head * group, group};
    float4 gates[AT_ONCE];
    if (DOWN == 1) leaving.ask_gates(gates, threadIdx.x);

    const int top = warp / ACROSS * 16, across = warp % ACROSS;
    const int g = lane / 4, t = lane % 4;
    float *largest = (float *)(shared + LARGEST_AT);
    const float *factors = (const float *)(shared + FACTORS_AT);
    const u8 *query_at = shared + (top + lane % 16) * KEY_PITCH + lane / 16 * 16;
    const u8 *key_at = keys + (across * (BLOCK / ACROSS) + lane % 8 + lane / 16 * 8) * KEY_PITCH + lane / 8 % 2 * 16;
    const u8 *value_at = values + lane % 16 * VALUE_PITCH + lane / 16 * 16 + across * PAIRS * 32;
    u8 *weights = shared + WEIGHTS_AT;
    float *key_scales = (float *)(shared + KEY_SCALES_AT), *value_scales = (float *)(shared + VALUE_SCALES_AT);

    // Rows g and g + 8 of the group: position, base of the span so far, totals of the spans before.
    int position[2];
    float factor[2], base[2], total_base[2], total_weight[2];
    float sums[PAIRS][2][4], totals[PAIRS][2][4], weight[4];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int r = top + g + 8 * h;
        position[h] = r < entry.z ? past + (entry.y + r) / group : -1;
        base[h] = total_base[h] = -INFINITE;
        total_weight[h] = 0.0f;
    }
#pragma unroll
    for (int e = 0; e < 4; e++) {
        weight[e] = 0.0f;
#pragma unroll
        for (int i = 0; i < PAIRS; i++) sums[i][0][e] = sums[i][1][e] = totals[i][0][e] = totals[i][1][e] = 0.0f;
    }

    for (int block = first_block; block <= last_block; block++) {
        const int at = block * BLOCK;
        ptx::copies_wait<1>();
        __syncthreads();
        if (block == first_block)
            for (int h = 0; h < 2; h++) factor[h] = factors[top + g + 8 * h];

        if constexpr (PACKED) {
            unpack<DK, true>(keys, key_scales, shared + KEY_STAGE_AT, seen.last_position + 1 - at);
            __syncthreads();
            if (block < last_block) ask_keys(at + BLOCK);
            ptx::copies_made();
        }

        // A chain for each half of the queries.
        float scores[2 * KEY_PAIRS][4], small[2 * KEY_PAIRS][4], sums_of_blocks[2 * KEY_PAIRS][4];
#pragma unroll
        for (int i = 0; i < 2 * KEY_PAIRS; i++)
#pragma unroll
            for (int e = 0; e < 4; e++) scores[i][e] = small[i][e] = sums_of_blocks[i][e] = 0.0f;
#pragma unroll 4
        for (int dim = 0; dim < DK; dim += 16) {
            u32 high[4], low[4];
            ptx::load_matrices(high, query_at + 2 * dim);
            ptx::load_matrices(low, query_at + ROWS * KEY_PITCH + 2 * dim);
            u32 b[2 * KEY_PAIRS][2];
#pragma unroll
            for (int i = 0; i < KEY_PAIRS; i++) {
                u32 both[4];
                ptx::load_matrices(both, key_at + i * 16 * KEY_PITCH + 2 * dim);
                b[2 * i][0] = both[0], b[2 * i][1] = both[1], b[2 * i + 1][0] = both[2], b[2 * i + 1][1] = both[3];
            }
#pragma unroll
            for (int i = 0; i < 2 * KEY_PAIRS; i++) ptx::mma_f16_k16(scores[i], high, b[i]);
#pragma unroll
            for (int i = 0; i < 2 * KEY_PAIRS; i++) ptx::mma_f16_k16(small[i], low, b[i]);
            if (PACKED && dim % 32 == 16) {
                // The end of a block.
                const float *of_block = key_scales + dim / 32 * BLOCK + across * (BLOCK / ACROSS) + 2 * t;
#pragma unroll
                for (int i = 0; i < 2 * KEY_PAIRS; i++) {
                    const float2 scale = *(const float2 *)(of_block + 8 * i);
#pragma unroll
                    for (int e = 0; e < 4; e++) {
                        const float sum = __fadd_rn(scores[i][e], small[i][e]);
                        sums_of_blocks[i][e] = fmaf(e % 2 ? scale.y : scale.x, sum, sums_of_blocks[i][e]);
                        scores[i][e] = small[i][e] = 0.0f;
                    }
                }
            }
        }

        // Scores in powers of two, and the largest of each row.
        const int own = at + across * (BLOCK / ACROSS) + 2 * t;
        const bool edge = at + BLOCK - 1 > seen.first_position || window > 0 || entry.z < ROWS;
        float most[2] = {-INFINITE, -INFINITE};
#pragma unroll
        for (int i = 0; i < 2 * KEY_PAIRS; i++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int h = e / 2, key = own + 8 * i + e % 2;
                const float sum = PACKED ? sums_of_blocks[i][e] : __fadd_rn(scores[i][e], small[i][e]);
                float score = __fmul_rn(sum, factor[h]);
                if (cap > 0.0f) score = __fmul_rn(cap, tanhf(score / cap));
                score = __fmul_rn(score, LOG2_E);
                if (edge && (key > position[h] || (window > 0 && key <= position[h] - window))) score = -INFINITE;
                scores[i][e] = score;
                most[h] = fmaxf(most[h], score);
            }
#pragma unroll
        for (int h = 0; h < 2; h++) {
            most[h] = fmaxf(most[h], __shfl_xor_sync(FULL_WARP, most[h], 1));
            most[h] = fmaxf(most[h], __shfl_xor_sync(FULL_WARP, most[h], 2));
            if (ACROSS > 1 && t == 0) largest[across * ROWS + top + g + 8 * h] = most[h];
        }
        __syncthreads();
        // Keys are used; the next take their place.
        if constexpr (!PACKED) {
            if (block < last_block) ask_keys(at + BLOCK);
            ptx::copies_made();
        }

        bool changed = false;
        float change[2];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            if (ACROSS > 1) {
#pragma unroll
                for (int w = 0; w < ACROSS; w++) most[h] = fmaxf(most[h], largest[w * ROWS + top + g + 8 * h]);
            }
            float next = fmaxf(base[h], ceilf(most[h]) - 10.0f);
            change[h] = base[h] == -INFINITE ? 1.0f : power_of_two(base[h] - next);
            changed |= change[h] != 1.0f;
            base[h] = next;
        }
        if (__any_sync(FULL_WARP, changed)) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                weight[e] = __fmul_rn(weight[e], change[e / 2]);
#pragma unroll
                for (int i = 0; i < PAIRS; i++) {
                    sums[i][0][e] = __fmul_rn(sums[i][0][e], change[e / 2]);
                    sums[i][1][e] = __fmul_rn(sums[i][1][e], change[e / 2]);
                }
            }
        }

        // Weights, as two halves each, or as they are where scales are yet to come.
        u32 high[2 * KEY_PAIRS][2], low[2 * KEY_PAIRS][2];
#pragma unroll
        for (int i = 0; i < 2 * KEY_PAIRS; i++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                float from = base[h] == -INFINITE ? 0.0f : base[h];
                float first = ptx::exp2_approx(__fadd_rn(scores[i][2 * h], -from));
                float second = ptx::exp2_approx(__fadd_rn(scores[i][2 * h + 1], -from));
                if constexpr (PACKED) {
                    scores[i][2 * h] = first;
                    scores[i][2 * h + 1] = second;
                    float *to = (float *)weights + (top + g + 8 * h) * WEIGHT_FLOATS + own - at + 8 * i;
                    if (ACROSS > 1) *(float2 *)to = make_float2(first, second);
                    continue;
                }
                split(first, second, high[i][h], low[i][h]);
                if (ACROSS > 1) {
                    u8 *to = weights + (top + g + 8 * h) * WEIGHT_PITCH + 2 * (own - at + 8 * i);
                    *(u32 *)to = high[i][h];
                    *(u32 *)(to + ROWS * WEIGHT_PITCH) = low[i][h];
                }
            }
        ptx::copies_wait<1>();
        __syncthreads();

        if constexpr (PACKED) {
            unpack<DV, false>(values, value_scales, shared + VALUE_STAGE_AT, seen.last_position + 1 - at);
            __syncthreads();
            if (block < last_block) ask_values(at + BLOCK);
            ptx::copies_made();
        }
        const u32 one = PACKED ? 0x3f803f80u : 0x3c003c00u, ones[2] = {one, one};
#pragma unroll
        for (int step = 0; step < BLOCK / 16; step++) {
            u32 a[4], rest[4];
            float2 raw[4];
            if constexpr (PACKED) {
#pragma unroll
                for (int q = 0; q < 4; q++) {
                    const float *from = (const float *)weights + (top + g + q % 2 * 8) * WEIGHT_FLOATS + 16 * step + q / 2 * 8 + 2 * t;
                    const float *own_scores = scores[(2 * step + q / 2) % (2 * KEY_PAIRS)] + q % 2 * 2;
                    raw[q] = ACROSS > 1 ? *(const float2 *)from : make_float2(own_scores[0], own_scores[1]);
                    split_bf16(raw[q].x, raw[q].y, a[q], rest[q]);
                }
                ptx::mma_bf16_k16(weight, a, ones);
                ptx::mma_bf16_k16(weight, rest, ones);
            } else {
                if constexpr (ACROSS > 1) {
                    const u8 *from = weights + (top + lane % 16) * WEIGHT_PITCH + lane / 16 * 16 + 32 * step;
                    ptx::load_matrices(a, from);
                    ptx::load_matrices(rest, from + ROWS * WEIGHT_PITCH);
                } else {
#pragma unroll
                    for (int q = 0; q < 4; q++) {
                        a[q] = high[2 * step + q / 2][q % 2];
                        rest[q] = low[2 * step + q / 2][q % 2];
                    }
                }
                ptx::mma_f16_k16(weight, a, ones);
                ptx::mma_f16_k16(weight, rest, ones);
            }
#pragma unroll
            for (int i = 0; i < PAIRS; i++) {
                const int pair = across * PAIRS + i;
                if (!ALL_PAIRS && pair >= DV / 16) break;
                u32 both[4];
                ptx::load_matrices_turned(both, value_at + step * 16 * VALUE_PITCH + 32 * i);
                const u32 b0[2] = {both[0], both[1]}, b1[2] = {both[2], both[3]};
                if constexpr (PACKED) {
                    if (i == 0 || pair % 2 == 0) {
#pragma unroll
                        for (int q = 0; q < 4; q++) {
                            const float2 scale = *(const float2 *)(value_scales + pair / 2 * BLOCK + 16 * step + q / 2 * 8 + 2 * t);
                            split_bf16(__fmul_rn(raw[q].x, scale.x), __fmul_rn(raw[q].y, scale.y), a[q], rest[q]);
                        }
                    }
                    ptx::mma_bf16_k16(sums[i][0], a, b0);
                    ptx::mma_bf16_k16(sums[i][1], a, b1);
                    ptx::mma_bf16_k16(sums[i][0], rest, b0);
                    ptx::mma_bf16_k16(sums[i][1], rest, b1);
                } else {
                    ptx::mma_f16_k16(sums[i][0], a, b0);
                    ptx::mma_f16_k16(sums[i][1], a, b1);
                    ptx::mma_f16_k16(sums[i][0], rest, b0);
                    ptx::mma_f16_k16(sums[i][1], rest, b1);
                }
            }
        }
        __syncthreads();
        if constexpr (!PACKED) {
            if (block < last_block) ask_values(at + BLOCK);
            ptx::copies_made();
        }

        if (block < last_block && (at + BLOCK) % span_keys != 0) continue;
        // The end of a span.
        if (partial) {
            const i64 slot = ((i64)tile * kv_heads + kv_head) * slots + at / SPAN / (1 << seen.shift) - seen.first_span;
            float *to = partials + slot * slot_rows * DV;
            float2 *stats = (float2 *)(partials + (i64)tiles * kv_heads * slots * slot_rows * DV) + slot * slot_rows;
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const int r = top + g + 8 * h;
                if (r >= entry.z) continue;
                if (across == 0 && t == 0) stats[r] = make_float2(base[h], weight[2 * h]);
#pragma unroll
                for (int i = 0; i < 2 * PAIRS; i++) {
                    const int dim = across * PAIRS * 16 + 8 * i + 2 * t;
                    const float *sum = sums[i / 2][i % 2];
                    if (ALL_PAIRS || dim < DV) *(float2 *)(to + r * DV + dim) = make_float2(sum[2 * h], sum[2 * h + 1]);
                }
            }
        } else {
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const Merge by = merge(total_base[h], base[h]);
                total_base[h] = by.base;
                total_weight[h] = merged(by, total_weight[h], weight[2 * h]);
#pragma unroll
                for (int i = 0; i < PAIRS; i++)
#pragma unroll
                    for (int e = 2 * h; e < 2 * h + 2; e++) {
                        totals[i][0][e] = merged(by, totals[i][0][e], sums[i][0][e]);
                        totals[i][1][e] = merged(by, totals[i][1][e], sums[i][1][e]);
                    }
            }
        }
        base[0] = base[1] = -INFINITE;
#pragma unroll
        for (int e = 0; e < 4; e++) {
            weight[e] = 0.0f;
#pragma unroll
            for (int i = 0; i < PAIRS; i++) sums[i][0][e] = sums[i][1][e] = 0.0f;
        }
    }
    if (partial) {
        if (!arrivals) return;
        // Everything in shared memory is used.
        bool &is_last = *(bool *)shared;
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0) {
            const u32 others = (seen.spans + each - 1) / each - 1;
            is_last = atomicInc(arrivals + tile * kv_heads + kv_head, others) == others;
        }
        __syncthreads();
        if (!is_last) return;
        __threadfence();
        const Spans spans = spans_of(partials, tile, tiles, kv_head, kv_heads, slots, slot_rows, seen.spans);
        float *merged = (float *)(shared + MERGED_AT);
        if (DOWN > 1) leaving.ask_gates(gates, threadIdx.x);
        merge_spans((float *)(shared + 16), spans, 0, entry.z, [&](int r, int dim, const float4 &four) {
            *(float4 *)(merged + r * RESULT_PITCH + dim) = four;
        });
        __syncthreads();
        leaving.put(merged, gates);
        return;
    }
    // By way of shared memory, where everything is used, so that a thread has neighbours of one row.
    float *all = (float *)shared;
    if (DOWN > 1) leaving.ask_gates(gates, threadIdx.x);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const float inverse = 1.0f / total_weight[h];
        float *to = all + (top + g + 8 * h) * RESULT_PITCH + across * PAIRS * 16 + 2 * t;
#pragma unroll
        for (int i = 0; i < 2 * PAIRS; i++) {
            if (!ALL_PAIRS && across * PAIRS * 16 + 8 * i >= DV) break;
            const float *total = totals[i / 2][i % 2] + 2 * h;
            *(float2 *)(to + 8 * i) = make_float2(__fmul_rn(total[0], inverse), __fmul_rn(total[1], inverse));
        }
    }
    __syncthreads();
    leaving.put(all, gates);
}

// Adds up the spans of a row that `flash` left apart: block x is the tile and its row, y the key-value head.
extern "C" __global__ void __launch_bounds__((DV / 4 + 31) / 32 * 32) combine(
    const float *partials, const int4 *plan, float *out, i64 out_token, i64 out_head, const float *gate, i64 gate_token,
    i64 gate_head, const int *sequences, int kv_heads, int group, int window, int slots, int slot_rows, u8 *pieces, int groups
) {
    in_turn();
    __shared__ float scratch[4 * SPANS];
    const int tile = blockIdx.x / slot_rows, r = blockIdx.x % slot_rows, tiles = gridDim.x / slot_rows;
    const int4 entry = tile_of(plan, tile, group);
    if (r >= entry.z) return;
    const int *sequence = sequences + entry.x * 8;
    const int count = seen_keys(entry, sequence, group, window).spans;
    if (count == 1) return;
    const Results results = {out, out_token, out_head, gate, gate_token, gate_head, pieces, groups};
    const Spans spans = spans_of(partials, tile, tiles, blockIdx.y, kv_heads, slots, slot_rows, count);
    const int row = entry.y + r, head = blockIdx.y * group + row % group;
    const i64 token = sequence[0] + row / group;
    merge_spans(scratch, spans, r, 1, [&](int, int dim, const float4 &four) {
        results.put(token, head, dim, four, results.gates(token, head, dim));
    });
}
