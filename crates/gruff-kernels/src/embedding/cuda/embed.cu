// Rows of a packed table, unpacked bit for bit as `gruff-blocks` does: a thread a group of 256 values.
//
// Constants: WEIGHT, the type's number; SCALAR, 1 for plain floats and integers (a thread a value).

#if SCALAR
#define WEIGHT_IS_SCALAR
#endif
#include "blocks.cuh"

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

template <int J>
static __device__ __forceinline__ void unpack(
    const u32 *words, const u32 *book, float *out, int left, float table_scale, float scale
) {
    if (left <= 32 * J) return;
    u32 codes[8];
    float scales[2], minima[2];
    blocks::decode<Weight, J>(blocks::Registers{words}, book, codes, scales, minima);
#pragma unroll
    for (int i = 0; i < 32; i++) {
        u32 byte = codes[i / 4] >> (8 * (i % 4)) & 255;
        int code = Weight::OFFSET == 0 ? (int)(i8)byte : (int)byte - Weight::OFFSET;
        int half = Weight::HALVES ? i / 16 : 0;
        float value = __fmul_rn(scales[half], (float)code);
        if (Weight::MINIMUM) value = __fadd_rn(value, minima[half]);
        out[32 * J + i] = __fmul_rn(__fmul_rn(value, table_scale), scale);
    }
}

extern "C" __global__ void embed(
    const u32 *ids, const u64 *late, const u8 *table, i64 row_bytes, const u32 *book, float *out, i64 out_stride,
    int tokens, int rows, int cols, float table_scale, float scale
) {
    in_turn();
    int groups = (cols + blocks::GROUP - 1) / blocks::GROUP;
    i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= (i64)tokens * groups) return;
    int token = (int)(i / groups), group = (int)(i - (i64)token * groups);
    u32 words[GROUP_WORDS<Weight>];
    load_group<Weight, false>(table + token_id(ids, late, rows, token) * row_bytes + (i64)group * Weight::BYTES, words);
    out += token * out_stride + group * blocks::GROUP;
    int left = cols - group * blocks::GROUP;
    unpack<0>(words, book, out, left, table_scale, scale);
    unpack<1>(words, book, out, left, table_scale, scale);
    unpack<2>(words, book, out, left, table_scale, scale);
    unpack<3>(words, book, out, left, table_scale, scale);
    unpack<4>(words, book, out, left, table_scale, scale);
    unpack<5>(words, book, out, left, table_scale, scale);
    unpack<6>(words, book, out, left, table_scale, scale);
    unpack<7>(words, book, out, left, table_scale, scale);
}

#endif
