// Rows of a packed table, unpacked bit for bit as `gruff-blocks` does: a thread 64 values.
//
// Constants: WEIGHT, the type's number; SCALAR, 1 for plain floats and integers (a thread a value).

#if SCALAR
#include "common.cuh"
#else
#include "blocks.cuh"
#endif

// The id of a token: as it stands there or, with the highest bit set, what an earlier step has left in that row of the
// ids that `late` points to. What is no row of the table, as -1 where nothing could be chosen, is taken for 0.
static __device__ __forceinline__ i64 token_id(const u32 *ids, const u64 *late, u32 rows, int token) {
    u32 id = ids[token];
    if (id >> 31) id = ((const u32 *)*late)[id & 0x7fffffffu];
    return id < rows ? id : 0;
}

#if SCALAR

static __device__ __forceinline__ float stored(const u8 *row, int i) {
#if WEIGHT == 0
    return ((const float *)row)[i];
#elif WEIGHT == 1
    return half_to_float(((const u16 *)row)[i]);
#elif WEIGHT == 24
    return (float)((const i8 *)row)[i];
#elif WEIGHT == 25
    return (float)((const short *)row)[i];
#elif WEIGHT == 26
    return (float)((const int *)row)[i];
#elif WEIGHT == 27
    return (float)((const i64 *)row)[i];
#elif WEIGHT == 28
    return (float)((const double *)row)[i];
#elif WEIGHT == 30
    return bf16_to_float(((const u16 *)row)[i]);
#endif
}

extern "C" __global__ void embed(
    const u32 *ids, const u64 *late, const u8 *table, i64 row_bytes, const u32 *book, float *out, i64 out_stride,
    int tokens, int rows, int cols, float table_scale, float scale
) {
    in_turn();
    i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= (i64)tokens * cols) return;
    int token = (int)(i / cols), column = (int)(i - (i64)token * cols);
    float value = stored(table + token_id(ids, late, rows, token) * row_bytes, column);
    out[token * out_stride + column] = __fmul_rn(__fmul_rn(value, table_scale), scale);
}

#else

template <int S>
static __device__ __forceinline__ void
unpack(const Share &share, int t, const u32 *book, float *out, int left, float table_scale, float scale) {
    if (left <= 32 * S) return;
    float scales[2], minima[2];
    Weight::template scales<S>(share, t, scales, minima);
    const u32 signs = Weight::template signs<S>(share);
    const auto word = [&](int i, u32 codes) {
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const int code = (int)(codes >> (8 * (k / 2 + k % 2 * 2)) & 255) - Weight::OFFSET, half = Weight::HALVES ? i / 4 : 0;
            float value = __fmul_rn(scales[half], (float)code);
            if (Weight::MINIMUM) value = __fadd_rn(value, minima[half]);
            if (Weight::SIGNS && signs >> (15 - 2 * i - k / 2 + k % 2 * 16) & 1) value = -value;
            out[32 * S + 4 * i + k] = __fmul_rn(__fmul_rn(value, table_scale), scale);
        }
    };
    word(0, Weight::template word<S, 0>(share, book));
    word(1, Weight::template word<S, 1>(share, book));
    word(2, Weight::template word<S, 2>(share, book));
    word(3, Weight::template word<S, 3>(share, book));
    word(4, Weight::template word<S, 4>(share, book));
    word(5, Weight::template word<S, 5>(share, book));
    word(6, Weight::template word<S, 6>(share, book));
    word(7, Weight::template word<S, 7>(share, book));
}

extern "C" __global__ void embed(
    const u32 *ids, const u64 *late, const u8 *table, i64 strip_bytes, const u32 *book, float *out, i64 out_stride,
    int tokens, int rows, int cols, float table_scale, float scale
) {
    in_turn();
    const int runs = (cols + blocks::RUN - 1) / blocks::RUN;
    const i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= (i64)tokens * runs) return;
    const int token = (int)(i / runs), run = (int)(i - (i64)token * runs), group = run / blocks::LANES;
    const i64 id = token_id(ids, late, rows, token);
    const int lanes = min(blocks::LANES, runs - group * blocks::LANES);
    const RowLane at = {(int)(id % blocks::STRIP), run % blocks::LANES, lanes};
    const Share share = load_share<false>(table + id / blocks::STRIP * strip_bytes + (i64)group * CELL, at);
    out += token * out_stride + run * blocks::RUN;
    const int left = cols - run * blocks::RUN;
    unpack<0>(share, at.t, book, out, left, table_scale, scale);
    unpack<1>(share, at.t, book, out, left, table_scale, scale);
}

#endif
