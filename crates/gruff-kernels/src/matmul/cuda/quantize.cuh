// Activations rounded to int8 in blocks of 32, loud blocks twice, as `matmul/quantize.rs` defines it.
#pragma once

#include "common.cuh"

// What becomes of four consecutive values, one of eight lanes that share a block: the codes, and the block's scale and
// sums (its first 16 in the low half, the last 16 in the high half).
struct Rounded {
    u32 codes;
    float scale;
    int sums;
};

__device__ __forceinline__ float eight_max(float value) {
#pragma unroll
    for (int step = 4; step > 0; step >>= 1) value = fmaxf(value, __shfl_xor_sync(FULL_WARP, value, step));
    return value;
}

__device__ __forceinline__ Rounded round_block(const float (&x)[4], float largest, bool finite) {
    Rounded rounded = {0, 0.0f, 0};
    float inverse = __fdiv_rn(127.0f, largest);
    bool usable = finite && largest != 0.0f && inverse <= 3.402823466e38f;
    int sum = 0;
    if (usable) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int code = __float2int_rn(__fmul_rn(x[i], inverse));
            rounded.codes |= (u32)(code & 255) << (8 * i);
            sum += code;
        }
        rounded.scale = __fdiv_rn(largest, 127.0f);
    } else if (!finite) {
        rounded.scale = __int_as_float(0x7fffffff);
    }
    sum += __shfl_xor_sync(FULL_WARP, sum, 1);
    sum += __shfl_xor_sync(FULL_WARP, sum, 2);
    int other = __shfl_xor_sync(FULL_WARP, sum, 4);
    bool front = (threadIdx.x & 4) == 0;
    int low = front ? sum : other, high = front ? other : sum;
    rounded.sums = (low & 65535) | high << 16;
    return rounded;
}

// Row `row` of activations, `cols` values at x -> codes, second codes and blocks (struct XBlock) of `groups` groups of 256,
// completed with zeros; part `part` of `parts`. The block's threads are as many for one width, since the mean square is
// added up by them.
//
// Without BESIDE a row's codes lie in order, and so do its blocks. With it 32 groups lie side by side, so that lanes that
// hold one each read consecutive addresses: piece p (16 codes) of all 32, then piece p + 1, and behind the 16 pieces the 8
// blocks likewise; `blocks` is not used. Second codes, in such pieces without blocks behind them, are written where a block
// is loud, and only there.
template <bool BESIDE>
static __device__ __forceinline__ void quantize_row(
    const float *x, int row, int cols, int groups, u32 *codes, u32 *second, int4 *blocks, int part, int parts, float *scratch
) {
    float squares = 0.0f;
#pragma unroll 8
    for (int i = threadIdx.x; i < cols; i += blockDim.x) squares = fmaf(x[i], x[i], squares);
    const float bar = 16.0f * __fdiv_rn(block_sum(squares, scratch), (float)cols);

    if (BESIDE) {
        const i64 turned = (groups + 31) / 32 * 32;
        codes += row * turned * 96, second += row * turned * 64, blocks = (int4 *)codes;
    } else {
        codes += (i64)row * groups * 64, second += (i64)row * groups * 64, blocks += (i64)row * groups * 8;
    }
    // Whole warps stay together: blockDim is a multiple of 32, four blocks a warp.
    const int lane = threadIdx.x & 7, all = groups * 8;
    for (int base = part * (blockDim.x / 8); base < all; base += parts * (blockDim.x / 8)) {
        const int block = base + threadIdx.x / 8;
        const int at = block * 32 + lane * 4;
        float values[4] = {};
        if (at < cols) {
#pragma unroll
            for (int i = 0; i < 4; i++) values[i] = x[at + i];
        }
        float largest = 0.0f;
        bool finite = true;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            largest = fmaxf(largest, fabsf(values[i]));
            finite = finite && fabsf(values[i]) <= 3.402823466e38f;
        }
        largest = eight_max(largest);
        u32 faults = __ballot_sync(FULL_WARP, !finite);
        finite = (faults >> (threadIdx.x & 24) & 255) == 0;

        Rounded first = round_block(values, largest, finite);
        const bool loud = largest * largest > bar;
        Rounded again = {0, 0.0f, 0};
        if (__any_sync(FULL_WARP, loud)) {
            float inverse = __fdiv_rn(127.0f, largest), scale = __fdiv_rn(largest, 127.0f), rest[4];
            if (!(inverse <= 3.402823466e38f)) inverse = 0.0f, scale = 0.0f;
            float left = 0.0f;
            bool sound = true;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                rest[i] = loud ? __fsub_rn(values[i], __fmul_rn(scale, rintf(__fmul_rn(values[i], inverse)))) : 0.0f;
                left = fmaxf(left, fabsf(rest[i]));
                sound = sound && fabsf(rest[i]) <= 3.402823466e38f;
            }
            left = eight_max(left);
            faults = __ballot_sync(FULL_WARP, !sound);
            again = round_block(rest, left, (faults >> (threadIdx.x & 24) & 255) == 0);
        }
        if (block < all) {
            int word = block * 8 + lane, second_word = word, entry = block;
            if (BESIDE) {
                const int group = block / 8, j = block % 8;
                const int piece = 2 * j + lane / 4, among = group % 32;
                word = ((group / 32 * 24 + piece) * 32 + among) * 4 + lane % 4;
                second_word = ((group / 32 * 16 + piece) * 32 + among) * 4 + lane % 4;
                entry = (group / 32 * 24 + 16 + j) * 32 + among;
            }
            codes[word] = first.codes;
            if (loud) second[second_word] = again.codes;
            if (lane == 0) {
                blocks[entry] = make_int4(__float_as_int(first.scale), first.sums, __float_as_int(again.scale), again.sums);
            }
        }
    }
}
