// Attention over pages. A block has a key-value head, a tile of up to ROWS rows (tokens of one sequence times the heads
// of the group) and either one span of keys or all of them. Each row's arithmetic is the same in both cases and in any
// tile: softmax runs online over the pages of a span, and spans are merged in order. DK and DV are the widths of key and
// value heads; KV is 0 for f32, 1 for f16, 2 for q8_0.

#include "common.cuh"

#define PAGE 32
// Keys of a span: few enough that a short context gives work to several multiprocessors.
#define SPAN 128
#define THREADS 128
#define WARPS (THREADS / 32)

// Keys are kept with widths of whole vectors, rows apart so that eight of them lie in different banks.
#define DKP ((DK + 3) / 4 * 4)
#define KEY_STRIDE (DKP + 4)
#define WEIGHT_STRIDE (PAGE + 4)

// A thread's part of a page's scores: so many keys and rows.
#define KEYS_EACH (ROWS >= 16 ? 2 : 1)
#define KEY_GROUPS (PAGE / KEYS_EACH)
#define ROW_GROUPS (THREADS / KEY_GROUPS)
#define ROWS_EACH (ROWS / ROW_GROUPS)
#define DIMS_EACH ((DV + THREADS - 1) / THREADS)
// With few rows a page's values are asked for before its keys are used: a block then waits once a page.
#define AHEAD (ROWS <= 8 && DIMS_EACH <= 2)

#if KV == 0
#define ROW_BYTES(dim) (4 * (dim))
#elif KV == 1
#define ROW_BYTES(dim) (2 * (dim))
#else
#define ROW_BYTES(dim) ((dim) / 32 * 34)
#endif

// Value `i` of a kept row.
static __device__ __forceinline__ float kept(const u8 *row, int i) {
#if KV == 0
    return ((const float *)row)[i];
#elif KV == 1
    return half_to_float(((const u16 *)row)[i]);
#else
    const u8 *block = row + i / 32 * 34;
    return half_to_float(*(const u16 *)block) * (float)((const i8 *)block)[2 + i % 32];
#endif
}

// This thread's value `i` of a key in a page of values. Behind the last token lies what others have left.
static __device__ __forceinline__ float value_at(const u8 *page, int key, int i, int count) {
    int dim = threadIdx.x + i * THREADS;
    bool here = key < count && (DV % THREADS == 0 || dim < DV);
    return here ? kept(page + key * ROW_BYTES(DV), dim) : 0.0f;
}

// A page of keys, widened, to shared memory.
static __device__ __forceinline__ void load_keys(const u8 *page, float *keys, int count) {
#if KV == 1 && DK % 8 == 0
    for (int i = threadIdx.x; i < count * (DK / 8); i += THREADS) {
        int key = i / (DK / 8), first = i % (DK / 8) * 8;
        uint4 bits = ((const uint4 *)page)[i];
        float2 a = half2_to_float2(bits.x), b = half2_to_float2(bits.y);
        float2 c = half2_to_float2(bits.z), d = half2_to_float2(bits.w);
        float4 *to = (float4 *)(keys + key * KEY_STRIDE + first);
        to[0] = make_float4(a.x, a.y, b.x, b.y);
        to[1] = make_float4(c.x, c.y, d.x, d.y);
    }
#elif KV == 2
    for (int i = threadIdx.x; i < count * (DK / 32); i += THREADS) {
        int key = i / (DK / 32), first = i % (DK / 32) * 32;
        const u16 *block = (const u16 *)(page + i * 34);
        float scale = half_to_float(block[0]);
        float *to = keys + key * KEY_STRIDE + first;
#pragma unroll
        for (int j = 0; j < 16; j++) {
            u16 pair = block[1 + j];
            to[2 * j] = scale * (float)(i8)(pair & 255);
            to[2 * j + 1] = scale * (float)(i8)(pair >> 8);
        }
    }
#else
    for (int i = threadIdx.x; i < count * DKP; i += THREADS) {
        int key = i / DKP, dim = i % DKP;
        keys[key * KEY_STRIDE + dim] = dim < DK ? kept(page + key * ROW_BYTES(DK), dim) : 0.0f;
    }
#endif
}

// How two partial results, in order, become one: their factors.
struct Merge {
    float largest, sum, ours, theirs;
};

static __device__ __forceinline__ Merge merge(float our_largest, float our_sum, float their_largest, float their_sum) {
    // Rows that see no key there (or none here) are left as they are (or taken over).
    if (their_sum == 0.0f) return {our_largest, our_sum, 1.0f, 0.0f};
    if (our_sum == 0.0f) return {their_largest, their_sum, 0.0f, 1.0f};
    float most = fmaxf(our_largest, their_largest);
    float ours = expf(our_largest - most), theirs = expf(their_largest - most);
    return {most, fmaf(their_sum, theirs, __fmul_rn(our_sum, ours)), ours, theirs};
}

static __device__ __forceinline__ float merged(const Merge &by, float ours, float theirs) {
    if (by.theirs == 0.0f && by.ours == 1.0f) return ours;
    if (by.ours == 0.0f && by.theirs == 1.0f) return theirs;
    return fmaf(theirs, by.theirs, __fmul_rn(ours, by.ours));
}

// The first span that a token at `position` sees.
static __device__ __forceinline__ int first_span_of(int position, int window) {
    return (window > 0 ? max(0, position - window + 1) : 0) / SPAN;
}

// Entries of `plan`: sequence, first row, rows, span (all spans if negative). Without a plan every sequence has one token,
// whose rows are a tile of `parts` blocks: one block takes all spans, of several each takes every `parts`-th, so that the
// grid does not depend on lengths.
extern "C" __global__ void __launch_bounds__(THREADS) attention(
    const float *queries, i64 query_token, i64 query_head, const u8 *key_pool, const u8 *value_pool, float *out,
    i64 out_token, i64 out_head, const int *sequences, const int *pages, const int4 *plan, float *partials,
    int kv_heads, int group, float scale, int window, float cap, int parts
) {
    in_turn();
    extern __shared__ float4 shared[];
    float *keys = (float *)shared;
    float *query_rows = keys + PAGE * KEY_STRIDE;
    float *weights = query_rows + ROWS * DKP;
    float *largest = weights + ROWS * WEIGHT_STRIDE;
    float *sum = largest + ROWS, *factor = sum + ROWS, *total_largest = factor + ROWS, *total_sum = total_largest + ROWS;
    float *ours = total_sum + ROWS, *theirs = ours + ROWS;

    int4 entry = plan ? plan[blockIdx.x] : make_int4(blockIdx.x / parts, 0, group, parts > 1 ? blockIdx.x % parts : -1);
    int kv_head = blockIdx.y, thread = threadIdx.x, lane = thread & 31, warp = thread >> 5;
    const int *sequence = sequences + entry.x * 8;
    int start = sequence[0], past = sequence[2];
    const int *own_pages = pages + sequence[4];
    int first_row = entry.y, rows = entry.z;
    int first_position = past + first_row / group, last_position = past + (first_row + rows - 1) / group;
    int first_key = window > 0 ? max(0, first_position - window + 1) : 0;
    int span = entry.w, last_span = entry.w, step = 1, slot = blockIdx.x;
    bool apart = entry.w >= 0;
    if (!apart) {
        span = first_key / SPAN;
        last_span = last_position / SPAN;
    } else if (!plan) {
        int first_span = first_key / SPAN;
        slot = sequence[6] + span;
        span += first_span;
        last_span = last_position / SPAN;
        step = parts;
        if (span > last_span) return;
    }

    for (int i = thread; i < ROWS * DKP; i += THREADS) {
        int r = i / DKP, dim = i % DKP, row = first_row + r;
        bool here = r < rows && dim < DK;
        i64 at = (start + row / group) * query_token + (kv_head * group + row % group) * query_head + dim;
        query_rows[i] = here ? queries[at] : 0.0f;
    }
    for (int i = thread; i < ROWS * WEIGHT_STRIDE; i += THREADS) weights[i] = 0.0f;
    if (thread < ROWS) {
        total_largest[thread] = -INFINITE;
        total_sum[thread] = 0.0f;
        factor[thread] = 1.0f;
    }

    float totals[ROWS][DIMS_EACH];
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int i = 0; i < DIMS_EACH; i++) totals[r][i] = 0.0f;

    for (; span <= last_span; span += step, slot += step) {
        float sums[ROWS][DIMS_EACH];
#pragma unroll
        for (int r = 0; r < ROWS; r++)
#pragma unroll
            for (int i = 0; i < DIMS_EACH; i++) sums[r][i] = 0.0f;
        __syncthreads();
        if (thread < ROWS) {
            largest[thread] = -INFINITE;
            sum[thread] = 0.0f;
        }
        int first_page = max(span * SPAN, first_key) / PAGE;
        int last_page = min((span + 1) * SPAN - 1, last_position) / PAGE;
        for (int page = first_page; page <= last_page; page++) {
            int at = page * PAGE, count = min(PAGE, last_position + 1 - at);
            i64 head_page = (i64)own_pages[page] * kv_heads + kv_head;
            const u8 *page_keys = key_pool + head_page * (PAGE * ROW_BYTES(DK));
            const u8 *page_values = value_pool + head_page * (PAGE * ROW_BYTES(DV));
            float ahead[AHEAD ? PAGE : 1][DIMS_EACH];
            if (AHEAD) {
#pragma unroll
                for (int key = 0; key < (AHEAD ? PAGE : 1); key++)
#pragma unroll
                    for (int i = 0; i < DIMS_EACH; i++) ahead[key][i] = value_at(page_values, key, i, count);
            }
            __syncthreads();
            load_keys(page_keys, keys, count);
            __syncthreads();
            {
                int key_group = thread % KEY_GROUPS, row_group = thread / KEY_GROUPS;
                float dots[ROWS_EACH][KEYS_EACH][4];
#pragma unroll
                for (int r = 0; r < ROWS_EACH; r++)
#pragma unroll
                    for (int k = 0; k < KEYS_EACH; k++)
#pragma unroll
                        for (int j = 0; j < 4; j++) dots[r][k][j] = 0.0f;
#pragma unroll(ROWS <= 8 ? 8 : 2)
                for (int dim = 0; dim < DKP; dim += 4) {
                    float4 key[KEYS_EACH];
#pragma unroll
                    for (int k = 0; k < KEYS_EACH; k++)
                        key[k] = *(const float4 *)(keys + (key_group + k * KEY_GROUPS) * KEY_STRIDE + dim);
#pragma unroll
                    for (int r = 0; r < ROWS_EACH; r++) {
                        float4 query = *(const float4 *)(query_rows + (row_group * ROWS_EACH + r) * DKP + dim);
#pragma unroll
                        for (int k = 0; k < KEYS_EACH; k++) {
                            dots[r][k][0] = fmaf(query.x, key[k].x, dots[r][k][0]);
                            dots[r][k][1] = fmaf(query.y, key[k].y, dots[r][k][1]);
                            dots[r][k][2] = fmaf(query.z, key[k].z, dots[r][k][2]);
                            dots[r][k][3] = fmaf(query.w, key[k].w, dots[r][k][3]);
                        }
                    }
                }
#pragma unroll
                for (int r = 0; r < ROWS_EACH; r++) {
                    int row = row_group * ROWS_EACH + r, position = past + (first_row + row) / group;
#pragma unroll
                    for (int k = 0; k < KEYS_EACH; k++) {
                        int slot = key_group + k * KEY_GROUPS, key = at + slot;
                        const float *d = dots[r][k];
                        float score = __fmul_rn(__fadd_rn(__fadd_rn(d[0], d[1]), __fadd_rn(d[2], d[3])), scale);
                        if (cap > 0.0f) score = __fmul_rn(cap, tanhf(score / cap));
                        bool seen = key <= position && (window <= 0 || key > position - window);
                        if (row < rows) weights[row * WEIGHT_STRIDE + slot] = seen ? score : -INFINITE;
                    }
                }
            }
            __syncthreads();
            for (int row = warp; row < rows; row += WARPS) {
                float score = weights[row * WEIGHT_STRIDE + lane];
                float before = largest[row], most = fmaxf(before, warp_max(score));
                bool none = most == -INFINITE;
                float weight = none ? 0.0f : expf(score - most);
                float change = none ? 1.0f : expf(before - most);
                float added = warp_sum(weight);
                weights[row * WEIGHT_STRIDE + lane] = weight;
                __syncwarp();
                if (lane == 0) {
                    largest[row] = most;
                    sum[row] = fmaf(sum[row], change, added);
                    factor[row] = change;
                }
            }
            __syncthreads();
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                float change = factor[r];
#pragma unroll
                for (int i = 0; i < DIMS_EACH; i++) sums[r][i] = __fmul_rn(sums[r][i], change);
            }
#pragma unroll(AHEAD ? 8 : 2)
            for (int key = 0; key < PAGE; key += 4) {
                float value[4][DIMS_EACH];
#pragma unroll
                for (int k = 0; k < 4; k++)
#pragma unroll
                    for (int i = 0; i < DIMS_EACH; i++)
                        value[k][i] = AHEAD ? ahead[AHEAD ? key + k : 0][i] : value_at(page_values, key + k, i, count);
#pragma unroll
                for (int r = 0; r < ROWS; r++) {
                    float4 weight = *(const float4 *)(weights + r * WEIGHT_STRIDE + key);
#pragma unroll
                    for (int i = 0; i < DIMS_EACH; i++) {
                        float total = sums[r][i];
                        total = fmaf(weight.x, value[0][i], total);
                        total = fmaf(weight.y, value[1][i], total);
                        total = fmaf(weight.z, value[2][i], total);
                        sums[r][i] = fmaf(weight.w, value[3][i], total);
                    }
                }
            }
        }
        __syncthreads();
        if (apart) {
            // One span: its partial result.
            float *to = partials + ((i64)slot * kv_heads + kv_head) * ROWS * (DV + 2);
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                if (r < rows) {
#pragma unroll
                    for (int i = 0; i < DIMS_EACH; i++) {
                        int dim = thread + i * THREADS;
                        if (dim < DV) to[r * (DV + 2) + 2 + dim] = sums[r][i];
                    }
                }
            }
            if (thread < rows) {
                to[thread * (DV + 2)] = largest[thread];
                to[thread * (DV + 2) + 1] = sum[thread];
            }
            continue;
        }
        if (thread < ROWS) {
            Merge by = merge(total_largest[thread], total_sum[thread], largest[thread], sum[thread]);
            total_largest[thread] = by.largest;
            total_sum[thread] = by.sum;
            ours[thread] = by.ours;
            theirs[thread] = by.theirs;
        }
        __syncthreads();
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            Merge by = {0.0f, 0.0f, ours[r], theirs[r]};
#pragma unroll
            for (int i = 0; i < DIMS_EACH; i++) totals[r][i] = merged(by, totals[r][i], sums[r][i]);
        }
    }
    if (apart) return;
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        if (r < rows) {
            int row = first_row + r;
            float *to = out + (start + row / group) * out_token + (kv_head * group + row % group) * out_head;
            float inverse = 1.0f / total_sum[r];
#pragma unroll
            for (int i = 0; i < DIMS_EACH; i++) {
                int dim = thread + i * THREADS;
                if (dim < DV) to[dim] = __fmul_rn(totals[r][i], inverse);
            }
        }
    }
}

// Merges the spans of a tile, in order. Entries of `tiles`: sequence, first row, first entry of the plan, spans. Without
// tiles every sequence has one token.
extern "C" __global__ void __launch_bounds__(THREADS) combine(
    const float *partials, const int4 *tiles, float *out, i64 out_token, i64 out_head, const int *sequences,
    int kv_heads, int group, int window
) {
    in_turn();
    int kv_head = blockIdx.y, r = blockIdx.z;
    int4 tile;
    if (tiles) {
        tile = tiles[blockIdx.x];
    } else {
        const int *own = sequences + blockIdx.x * 8;
        tile = make_int4(blockIdx.x, 0, own[6], own[2] / SPAN + 1 - first_span_of(own[2], window));
    }
    const int *sequence = sequences + tile.x * 8;
    int row = tile.y + r;
    if (row >= sequence[1] * group) return;
    float totals[DIMS_EACH];
    float total_largest = -INFINITE, total_sum = 0.0f;
#pragma unroll
    for (int i = 0; i < DIMS_EACH; i++) totals[i] = 0.0f;
    i64 stride = (i64)kv_heads * ROWS * (DV + 2);
    const float *from = partials + (((i64)tile.z * kv_heads + kv_head) * ROWS + r) * (DV + 2);
#pragma unroll 4
    for (int span = 0; span < tile.w; span++, from += stride) {
        Merge by = merge(total_largest, total_sum, from[0], from[1]);
        total_largest = by.largest;
        total_sum = by.sum;
#pragma unroll
        for (int i = 0; i < DIMS_EACH; i++) {
            int dim = threadIdx.x + i * THREADS;
            if (dim < DV) totals[i] = merged(by, totals[i], from[2 + dim]);
        }
    }
    float *to = out + (sequence[0] + row / group) * out_token + (kv_head * group + row % group) * out_head;
    float inverse = 1.0f / total_sum;
#pragma unroll
    for (int i = 0; i < DIMS_EACH; i++) {
        int dim = threadIdx.x + i * THREADS;
        if (dim < DV) to[dim] = __fmul_rn(totals[i], inverse);
    }
}
