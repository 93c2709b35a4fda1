// Packed blocks on CUDA: from the bytes of a file to codes, scales and minima, in registers.
//
// A group is 256 consecutive values of a row, eight sub-blocks of 32. A type `W` says how many bytes a whole group has
// and decodes sub-block J of a group that lies in registers as 32-bit words:
//
//     value[i] = scale[i / 16] * (code[i] - OFFSET) + minimum[i / 16]
//
// the product and the sum rounded to f32 one after the other, which is what the `gruff-blocks` crate computes, bit for bit.
// Types without HALVES have one scale and one minimum for all 32; types without MINIMUM have none. Codes come four to a
// word, in order; bytes from 0 to 255 - OFFSET, or signed ones where OFFSET is 0.
//
// J is a template argument, so every offset below is a constant and a field costs a shift or a byte permutation.
#pragma once

#include "common.cuh"

namespace blocks {

// Values of a group, and sub-blocks of 32 in it.
constexpr int GROUP = 256;
constexpr int SUB_BLOCKS = 8;

// Words, halves and bytes at a constant byte offset of a group in registers.
template <int OFFSET>
__device__ __forceinline__ u32 word_at(const u32* words) {
    if constexpr (OFFSET % 4 == 0) {
        return words[OFFSET / 4];
    } else {
        return __funnelshift_r(words[OFFSET / 4], words[OFFSET / 4 + 1], 8 * (OFFSET % 4));
    }
}

template <int OFFSET>
__device__ __forceinline__ u32 byte_at(const u32* words) {
    return (words[OFFSET / 4] >> (8 * (OFFSET % 4))) & 255;
}

// At an even offset.
template <int OFFSET>
__device__ __forceinline__ u32 short_at(const u32* words) {
    static_assert(OFFSET % 2 == 0, "two bytes of one word");
    return (words[OFFSET / 4] >> (8 * (OFFSET % 4))) & 65535;
}

template <int OFFSET>
__device__ __forceinline__ float half_at(const u32* words) {
    return half_to_float((u16)short_at<OFFSET>(words));
}

// Four bits to the lowest bits of four bytes.
__device__ __forceinline__ u32 spread_bits(u32 bits) {
    return ((bits & 15) * 0x00204081u) & 0x01010101u;
}

// Codes as signed bytes, OFFSET subtracted: for codes and offsets below 128.
template <int OFFSET>
__device__ __forceinline__ u32 signed_codes(u32 codes) {
    return OFFSET == 0 ? codes : ((codes | 0x80808080u) - 0x01010101u * OFFSET) ^ 0x80808080u;
}

// Moves bit (or field that begins at) FROM of each byte to TO; what surrounds it is for the caller to mask.
template <int FROM, int TO>
__device__ __forceinline__ u32 move_bits(u32 bytes) {
    if constexpr (FROM <= TO) return bytes << (TO - FROM);
    else return bytes >> (FROM - TO);
}

// The entries of a table of 16 bytes for the eight half bytes of a word: the low halves' to `low`, the high ones' to `high`.
__device__ __forceinline__ void look_up_16(const u32 (&table)[4], u32 codes, u32& low, u32& high) {
    u32 index = codes & 0x77777777u;
    u32 choose = 0x32103210u | ((codes & 0x88888888u) >> 1);
    u32 front = __byte_perm(__byte_perm(table[0], table[1], index), __byte_perm(table[2], table[3], index), choose);
    index >>= 16;
    choose >>= 16;
    u32 back = __byte_perm(__byte_perm(table[0], table[1], index), __byte_perm(table[2], table[3], index), choose);
    low = __byte_perm(front, back, 0x6420);
    high = __byte_perm(front, back, 0x7531);
}

// Negates the bytes of `levels` (each at least 1) whose bit is set.
__device__ __forceinline__ u32 negate_where(u32 levels, u32 bits) {
    u32 ones = spread_bits(bits);
    return (levels ^ (ones * 255)) + ones;
}

// Seven stored signs and the eighth that makes their number even.
__device__ __forceinline__ u32 eight_signs(u32 seven) {
    return seven | (__popc(seven) & 1) << 7;
}

// What a type has unless it says otherwise.
struct Plain {
    static constexpr bool HALVES = false;
    static constexpr bool MINIMUM = false;
    static constexpr int OFFSET = 0;
    // 32-bit words of the table that decoding looks values up in.
    static constexpr int TABLE = 0;
    // Whether a block is a group, so that no row ends within one.
    static constexpr bool WHOLE_GROUPS = true;
};

// 32 four-bit codes as the first generation arranges them, from byte O on.
template <int O>
__device__ __forceinline__ void nibbles(const u32* w, u32 (&q)[8]) {
    u32 packed[4] = {word_at<O>(w), word_at<O + 4>(w), word_at<O + 8>(w), word_at<O + 12>(w)};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        q[i] = packed[i] & 0x0f0f0f0fu;
        q[i + 4] = (packed[i] >> 4) & 0x0f0f0f0fu;
    }
}

// The same with the fifth bits in the word at byte H.
template <int O, int H>
__device__ __forceinline__ void five_bits(const u32* w, u32 (&q)[8]) {
    nibbles<O>(w, q);
    u32 high = word_at<H>(w);
#pragma unroll
    for (int i = 0; i < 8; i++) q[i] |= spread_bits(high >> (4 * i)) << 4;
}

template <int O>
__device__ __forceinline__ void eight_words(const u32* w, u32 (&q)[8]) {
    q[0] = word_at<O>(w), q[1] = word_at<O + 4>(w), q[2] = word_at<O + 8>(w), q[3] = word_at<O + 12>(w);
    q[4] = word_at<O + 16>(w), q[5] = word_at<O + 20>(w), q[6] = word_at<O + 24>(w), q[7] = word_at<O + 28>(w);
}

struct Q4_0 : Plain {
    static constexpr bool WHOLE_GROUPS = false;
    static constexpr int BYTES = 8 * 18;
    static constexpr int OFFSET = 8;
    template <int J>
    __device__ static void decode(const u32* w, const u32*, u32 (&q)[8], float (&scale)[2], float (&)[2]) {
        scale[0] = half_at<18 * J>(w);
        nibbles<18 * J + 2>(w, q);
    }
};

struct Q4_1 : Plain {
    static constexpr bool WHOLE_GROUPS = false;
    static constexpr int BYTES = 8 * 20;
    static constexpr bool MINIMUM = true;
    template <int J>
    __device__ static void decode(const u32* w, const u32*, u32 (&q)[8], float (&scale)[2], float (&minimum)[2]) {
        scale[0] = half_at<20 * J>(w);
        minimum[0] = half_at<20 * J + 2>(w);
        nibbles<20 * J + 4>(w, q);
    }
};

struct Q5_0 : Plain {
    static constexpr bool WHOLE_GROUPS = false;
    static constexpr int BYTES = 8 * 22;
    static constexpr int OFFSET = 16;
    template <int J>
    __device__ static void decode(const u32* w, const u32*, u32 (&q)[8], float (&scale)[2], float (&)[2]) {
        scale[0] = half_at<22 * J>(w);
        five_bits<22 * J + 6, 22 * J + 2>(w, q);
    }
};

struct Q5_1 : Plain {
    static constexpr bool WHOLE_GROUPS = false;
    static constexpr int BYTES = 8 * 24;
    static constexpr bool MINIMUM = true;
    template <int J>
    __device__ static void decode(const u32* w, const u32*, u32 (&q)[8], float (&scale)[2], float (&minimum)[2]) {
        scale[0] = half_at<24 * J>(w);
        minimum[0] = half_at<24 * J + 2>(w);
        five_bits<24 * J + 8, 24 * J + 4>(w, q);
    }
};

struct Q8_0 : Plain {
    static constexpr bool WHOLE_GROUPS = false;
    static constexpr int BYTES = 8 * 34;
    template <int J>
    __device__ static void decode(const u32* w, const u32*, u32 (&q)[8], float (&scale)[2], float (&)[2]) {
        scale[0] = half_at<34 * J>(w);
        eight_words<34 * J + 2>(w, q);
    }
};

struct Q8_1 : Plain {
    static constexpr bool WHOLE_GROUPS = false;
    static constexpr int BYTES = 8 * 36;
    template <int J>
    __device__ static void decode(const u32* w, const u32*, u32 (&q)[8], float (&scale)[2], float (&)[2]) {
        scale[0] = half_at<36 * J>(w);
        eight_words<36 * J + 4>(w, q);
    }
};

// Two bits of each of 32 bytes from byte O on.
template <int O>
__device__ __forceinline__ void two_bits(const u32* w, int shift, u32 (&q)[8]) {
    eight_words<O>(w, q);
#pragma unroll
    for (int i = 0; i < 8; i++) q[i] = (q[i] >> shift) & 0x03030303u;
}

struct Q2_K : Plain {
    static constexpr int BYTES = 84;
    static constexpr bool HALVES = true;
    static constexpr bool MINIMUM = true;
    template <int J>
    __device__ static void decode(const u32* w, const u32*, u32 (&q)[8], float (&scale)[2], float (&minimum)[2]) {
        float d = half_at<80>(w), dmin = half_at<82>(w);
        u32 first = byte_at<2 * J>(w), second = byte_at<2 * J + 1>(w);
        scale[0] = __fmul_rn(d, float(first & 15)), scale[1] = __fmul_rn(d, float(second & 15));
        minimum[0] = -__fmul_rn(dmin, float(first >> 4)), minimum[1] = -__fmul_rn(dmin, float(second >> 4));
        two_bits<16 + 32 * (J / 4)>(w, 2 * (J % 4), q);
    }
};

struct Q3_K : Plain {
    static constexpr int BYTES = 110;
    static constexpr bool HALVES = true;
    static constexpr int OFFSET = 4;
    template <int I>
    __device__ static float scale_of(const u32* w) {
        u32 low = (byte_at<96 + I % 8>(w) >> (4 * (I / 8))) & 15;
        u32 high = (byte_at<104 + I % 4>(w) >> (2 * (I / 4))) & 3;
        return __fmul_rn(half_at<108>(w), float(int(low | high << 4) - 32));
    }
    template <int J>
    __device__ static void decode(const u32* w, const u32*, u32 (&q)[8], float (&scale)[2], float (&)[2]) {
        scale[0] = scale_of<2 * J>(w), scale[1] = scale_of<2 * J + 1>(w);
        two_bits<32 + 32 * (J / 4)>(w, 2 * (J % 4), q);
#pragma unroll
        for (int i = 0; i < 8; i++) q[i] |= move_bits<J, 2>(w[i]) & 0x04040404u;
    }
};

// Scales and minima of Q4_K and Q5_K.
template <int J>
__device__ __forceinline__ void scale_min_k4(const u32* w, float& scale, float& minimum) {
    u32 s, m;
    if constexpr (J < 4) {
        s = byte_at<4 + J>(w) & 63;
        m = byte_at<8 + J>(w) & 63;
    } else {
        u32 low = byte_at<8 + J>(w);
        s = (low & 15) | (byte_at<J>(w) >> 6) << 4;
        m = (low >> 4) | (byte_at<4 + J>(w) >> 6) << 4;
    }
    scale = __fmul_rn(half_at<0>(w), float(s));
    minimum = -__fmul_rn(half_at<2>(w), float(m));
}

struct Q4_K : Plain {
    static constexpr int BYTES = 144;
    static constexpr bool MINIMUM = true;
    template <int J>
    __device__ static void decode(const u32* w, const u32*, u32 (&q)[8], float (&scale)[2], float (&minimum)[2]) {
        scale_min_k4<J>(w, scale[0], minimum[0]);
        eight_words<16 + 32 * (J / 2)>(w, q);
#pragma unroll
        for (int i = 0; i < 8; i++) q[i] = (q[i] >> (4 * (J % 2))) & 0x0f0f0f0fu;
    }
};

struct Q5_K : Plain {
    static constexpr int BYTES = 176;
    static constexpr bool MINIMUM = true;
    template <int J>
    __device__ static void decode(const u32* w, const u32*, u32 (&q)[8], float (&scale)[2], float (&minimum)[2]) {
        scale_min_k4<J>(w, scale[0], minimum[0]);
        eight_words<48 + 32 * (J / 2)>(w, q);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            q[i] = ((q[i] >> (4 * (J % 2))) & 0x0f0f0f0fu) | (move_bits<J, 4>(w[4 + i]) & 0x10101010u);
        }
    }
};

struct Q6_K : Plain {
    static constexpr int BYTES = 210;
    static constexpr bool HALVES = true;
    static constexpr int OFFSET = 32;
    template <int J>
    __device__ static void decode(const u32* w, const u32*, u32 (&q)[8], float (&scale)[2], float (&)[2]) {
        float d = half_at<208>(w);
        scale[0] = __fmul_rn(d, float(int((signed char)byte_at<192 + 2 * J>(w))));
        scale[1] = __fmul_rn(d, float(int((signed char)byte_at<193 + 2 * J>(w))));
        u32 high[8];
        eight_words<64 * (J / 4) + 32 * (J % 2)>(w, q);
        eight_words<128 + 32 * (J / 4)>(w, high);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            u32 top = move_bits<2 * (J % 4), 4>(high[i]) & 0x30303030u;
            q[i] = ((q[i] >> (4 * (J / 2 % 2))) & 0x0f0f0f0fu) | top;
        }
    }
};

struct Q8_K : Plain {
    static constexpr int BYTES = 292;
    template <int J>
    __device__ static void decode(const u32* w, const u32*, u32 (&q)[8], float (&scale)[2], float (&)[2]) {
        scale[0] = __uint_as_float(w[0]);
        eight_words<4 + 32 * J>(w, q);
    }
};

// Three to the power n.
__device__ constexpr u32 three_to(int n) { return n == 0 ? 1 : 3 * three_to(n - 1); }

// Digit N of four bytes of base-3 digits.
template <int N>
__device__ __forceinline__ u32 trits(u32 bytes) {
    u32 even = (((bytes & 0x00ff00ffu) * three_to(N)) & 0x00ff00ffu) * 3;
    u32 odd = ((((bytes >> 8) & 0x00ff00ffu) * three_to(N)) & 0x00ff00ffu) * 3;
    return ((even >> 8) & 0x00ff00ffu) | (odd & 0xff00ff00u);
}

struct TQ1_0 : Plain {
    static constexpr int BYTES = 54;
    static constexpr int OFFSET = 1;
    template <int J>
    __device__ static void decode(const u32* w, const u32*, u32 (&q)[8], float (&scale)[2], float (&)[2]) {
        scale[0] = half_at<52>(w);
        if constexpr (J < 5) {
#pragma unroll
            for (int i = 0; i < 8; i++) q[i] = trits<J>(w[i]);
        } else if constexpr (J < 7) {
#pragma unroll
            for (int i = 0; i < 4; i++) q[i] = trits<2 * J - 10>(w[8 + i]), q[4 + i] = trits<2 * J - 9>(w[8 + i]);
        } else {
#pragma unroll
            for (int i = 0; i < 4; i++) q[i] = trits<4>(w[8 + i]);
            q[4] = trits<0>(w[12]), q[5] = trits<1>(w[12]), q[6] = trits<2>(w[12]), q[7] = trits<3>(w[12]);
        }
    }
};

struct TQ2_0 : Plain {
    static constexpr int BYTES = 66;
    static constexpr int OFFSET = 1;
    template <int J>
    __device__ static void decode(const u32* w, const u32*, u32 (&q)[8], float (&scale)[2], float (&)[2]) {
        scale[0] = half_at<64>(w);
        two_bits<32 * (J / 4)>(w, 2 * (J % 4), q);
    }
};

struct Q1_0 : Plain {
    static constexpr bool WHOLE_GROUPS = false;
    static constexpr int BYTES = 2 * 18;
    static constexpr int OFFSET = 1;
    template <int J>
    __device__ static void decode(const u32* w, const u32*, u32 (&q)[8], float (&scale)[2], float (&)[2]) {
        scale[0] = half_at<18 * (J / 4)>(w);
        u32 bits = word_at<18 * (J / 4) + 2 + 4 * (J % 4)>(w);
#pragma unroll
        for (int i = 0; i < 8; i++) q[i] = spread_bits(bits >> (4 * i)) << 1;
    }
};

struct Q2_0 : Plain {
    static constexpr bool WHOLE_GROUPS = false;
    static constexpr int BYTES = 4 * 18;
    static constexpr int OFFSET = 1;
    template <int J>
    __device__ static void decode(const u32* w, const u32*, u32 (&q)[8], float (&scale)[2], float (&)[2]) {
        constexpr int first = 18 * (J / 2) + 2 + 8 * (J % 2);
        scale[0] = half_at<18 * (J / 2)>(w);
        u32 packed[2] = {word_at<first>(w), word_at<first + 4>(w)};
#pragma unroll
        for (int i = 0; i < 8; i++) {
            u32 four = (packed[i / 4] >> (8 * (i % 4))) & 255;
            u32 twos = (four | four << 12) & 0x000f000fu;
            q[i] = (twos | twos << 6) & 0x03030303u;
        }
    }
};

// The sixteen levels of IQ4_NL and IQ4_XS, and the sixteen E2M1 numbers, doubled; four a word.
#define IQ4_LEVELS {0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u}
#define E2M1_LEVELS {0x03020100u, 0x0c080604u, 0xfdfeff00u, 0xf4f8fafcu}

// 32 codes of a table of 16, arranged as those of the first generation.
template <int O>
__device__ __forceinline__ void look_up_32(const u32* w, const u32 (&table)[4], u32 (&q)[8]) {
    u32 packed[4] = {word_at<O>(w), word_at<O + 4>(w), word_at<O + 8>(w), word_at<O + 12>(w)};
#pragma unroll
    for (int i = 0; i < 4; i++) look_up_16(table, packed[i], q[i], q[i + 4]);
}

struct IQ4_NL : Plain {
    static constexpr bool WHOLE_GROUPS = false;
    static constexpr int BYTES = 8 * 18;
    template <int J>
    __device__ static void decode(const u32* w, const u32*, u32 (&q)[8], float (&scale)[2], float (&)[2]) {
        const u32 levels[4] = IQ4_LEVELS;
        scale[0] = half_at<18 * J>(w);
        look_up_32<18 * J + 2>(w, levels, q);
    }
};

struct IQ4_XS : Plain {
    static constexpr int BYTES = 136;
    template <int J>
    __device__ static void decode(const u32* w, const u32*, u32 (&q)[8], float (&scale)[2], float (&)[2]) {
        const u32 levels[4] = IQ4_LEVELS;
        u32 low = (byte_at<4 + J / 2>(w) >> (4 * (J % 2))) & 15;
        u32 high = (short_at<2>(w) >> (2 * J)) & 3;
        scale[0] = __fmul_rn(half_at<0>(w), float(int(low | high << 4) - 32));
        look_up_32<8 + 16 * J>(w, levels, q);
    }
};

struct MXFP4 : Plain {
    static constexpr bool WHOLE_GROUPS = false;
    static constexpr int BYTES = 8 * 17;
    template <int J>
    __device__ static void decode(const u32* w, const u32*, u32 (&q)[8], float (&scale)[2], float (&)[2]) {
        const u32 levels[4] = E2M1_LEVELS;
        u32 e = byte_at<17 * J>(w);
        scale[0] = __uint_as_float(e < 2 ? 0x00200000u << e : (e - 1) << 23);
        look_up_32<17 * J + 1>(w, levels, q);
    }
};

struct NVFP4 : Plain {
    static constexpr bool WHOLE_GROUPS = false;
    static constexpr int BYTES = 4 * 36;
    static constexpr bool HALVES = true;
    __device__ static float scale_of(u32 code) {
        u32 exponent = code >> 3 & 15, mantissa = code & 7;
        float normal = __uint_as_float((exponent + 119) << 23 | mantissa << 20);
        float value = exponent == 0 ? float(mantissa) * (1.0f / 1024.0f) : normal;
        return code == 0x7f ? 0.0f : value;
    }
    template <int J>
    __device__ static void decode(const u32* w, const u32*, u32 (&q)[8], float (&scale)[2], float (&)[2]) {
        const u32 levels[4] = E2M1_LEVELS;
        constexpr int block = 36 * (J / 2), first = 2 * (J % 2);
        scale[0] = scale_of(byte_at<block + first>(w)), scale[1] = scale_of(byte_at<block + first + 1>(w));
        look_up_16(levels, word_at<block + 4 + 8 * first>(w), q[0], q[2]);
        look_up_16(levels, word_at<block + 8 + 8 * first>(w), q[1], q[3]);
        look_up_16(levels, word_at<block + 12 + 8 * first>(w), q[4], q[6]);
        look_up_16(levels, word_at<block + 16 + 8 * first>(w), q[5], q[7]);
    }
};

// Two words of the table: an entry of eight values.
__device__ __forceinline__ void entry_of_8(const u32* table, u32 entry, u32& first, u32& second) {
    uint2 words = reinterpret_cast<const uint2*>(table)[entry];
    first = words.x, second = words.y;
}

struct IQ2_XXS : Plain {
    static constexpr int BYTES = 66;
    static constexpr int TABLE = 2 * 256;
    template <int J>
    __device__ static void decode(const u32* w, const u32* table, u32 (&q)[8], float (&scale)[2], float (&)[2]) {
        u32 entries = word_at<2 + 8 * J>(w), word = word_at<6 + 8 * J>(w);
        scale[0] = __fmul_rn(half_at<0>(w), 0.5f + float(word >> 28)) * 0.25f;
#pragma unroll
        for (int k = 0; k < 4; k++) {
            u32 signs = eight_signs(word >> (7 * k) & 127), first, second;
            entry_of_8(table, entries >> (8 * k) & 255, first, second);
            q[2 * k] = negate_where(first, signs), q[2 * k + 1] = negate_where(second, signs >> 4);
        }
    }
};

// The two scales of a sub-block of IQ2_XS and IQ2_S.
__device__ __forceinline__ void half_byte_scales(float d, u32 scales, float (&scale)[2]) {
    scale[0] = __fmul_rn(d, 0.5f + float(scales & 15)) * 0.25f;
    scale[1] = __fmul_rn(d, 0.5f + float(scales >> 4)) * 0.25f;
}

struct IQ2_XS : Plain {
    static constexpr int BYTES = 74;
    static constexpr bool HALVES = true;
    static constexpr int TABLE = 2 * 512;
    template <int J>
    __device__ static void decode(const u32* w, const u32* table, u32 (&q)[8], float (&scale)[2], float (&)[2]) {
        u32 packed[2] = {word_at<2 + 8 * J>(w), word_at<6 + 8 * J>(w)};
        half_byte_scales(half_at<0>(w), byte_at<66 + J>(w), scale);
#pragma unroll
        for (int k = 0; k < 4; k++) {
            u32 word = packed[k / 2] >> (16 * (k % 2)) & 65535, signs = eight_signs(word >> 9), first, second;
            entry_of_8(table, word & 511, first, second);
            q[2 * k] = negate_where(first, signs), q[2 * k + 1] = negate_where(second, signs >> 4);
        }
    }
};

struct IQ2_S : Plain {
    static constexpr int BYTES = 82;
    static constexpr bool HALVES = true;
    static constexpr int TABLE = 2 * 1024;
    template <int J>
    __device__ static void decode(const u32* w, const u32* table, u32 (&q)[8], float (&scale)[2], float (&)[2]) {
        u32 low = word_at<2 + 4 * J>(w), all_signs = word_at<34 + 4 * J>(w), high = byte_at<66 + J>(w);
        half_byte_scales(half_at<0>(w), byte_at<74 + J>(w), scale);
#pragma unroll
        for (int k = 0; k < 4; k++) {
            u32 entry = (low >> (8 * k) & 255) | (high >> (2 * k) & 3) << 8, signs = all_signs >> (8 * k), first, second;
            entry_of_8(table, entry, first, second);
            q[2 * k] = negate_where(first, signs), q[2 * k + 1] = negate_where(second, signs >> 4);
        }
    }
};

struct IQ3_XXS : Plain {
    static constexpr int BYTES = 98;
    static constexpr int TABLE = 256;
    template <int J>
    __device__ static void decode(const u32* w, const u32* table, u32 (&q)[8], float (&scale)[2], float (&)[2]) {
        u32 entries[2] = {word_at<2 + 8 * J>(w), word_at<6 + 8 * J>(w)}, word = word_at<66 + 4 * J>(w);
        scale[0] = __fmul_rn(half_at<0>(w), 0.5f + float(word >> 28)) * 0.5f;
#pragma unroll
        for (int k = 0; k < 8; k++) {
            u32 signs = eight_signs(word >> (7 * (k / 2)) & 127) >> (4 * (k % 2));
            q[k] = negate_where(table[entries[k / 4] >> (8 * (k % 4)) & 255], signs);
        }
    }
};

struct IQ3_S : Plain {
    static constexpr int BYTES = 110;
    static constexpr int TABLE = 512;
    template <int J>
    __device__ static void decode(const u32* w, const u32* table, u32 (&q)[8], float (&scale)[2], float (&)[2]) {
        u32 low[2] = {word_at<2 + 8 * J>(w), word_at<6 + 8 * J>(w)};
        u32 high = byte_at<66 + J>(w), signs = word_at<74 + 4 * J>(w);
        u32 half_byte = byte_at<106 + J / 2>(w) >> (4 * (J % 2)) & 15;
        scale[0] = __fmul_rn(half_at<0>(w), float(2 * half_byte + 1));
#pragma unroll
        for (int k = 0; k < 8; k++) {
            u32 entry = (low[k / 4] >> (8 * (k % 4)) & 255) | (high >> k & 1) << 8;
            q[k] = negate_where(table[entry], signs >> (4 * k));
        }
    }
};

// The book of the IQ1 types holds g of {-1, 0, 1} as 8 g + 9; a group of eight adds or subtracts 1 (delta is an eighth),
// so that code - 9 is eight times what the scale multiplies.
__device__ __forceinline__ void shifted_entry(const u32* table, u32 entry, u32 negative, u32& first, u32& second) {
    entry_of_8(table, entry, first, second);
    u32 delta = negative ? 0u - 0x01010101u : 0x01010101u;
    first += delta, second += delta;
}

struct IQ1_S : Plain {
    static constexpr int BYTES = 50;
    static constexpr int OFFSET = 9;
    static constexpr int TABLE = 2 * 2048;
    template <int J>
    __device__ static void decode(const u32* w, const u32* table, u32 (&q)[8], float (&scale)[2], float (&)[2]) {
        u32 low = word_at<2 + 4 * J>(w), high = short_at<34 + 2 * J>(w);
        scale[0] = __fmul_rn(half_at<0>(w), float(2 * (high >> 12 & 7) + 1)) * 0.125f;
#pragma unroll
        for (int k = 0; k < 4; k++) {
            u32 entry = (low >> (8 * k) & 255) | (high >> (3 * k) & 7) << 8;
            shifted_entry(table, entry, high >> 15, q[2 * k], q[2 * k + 1]);
        }
    }
};

struct IQ1_M : Plain {
    static constexpr int BYTES = 56;
    static constexpr bool HALVES = true;
    static constexpr int OFFSET = 9;
    static constexpr int TABLE = 2 * 2048;
    template <int J>
    __device__ static void decode(const u32* w, const u32* table, u32 (&q)[8], float (&scale)[2], float (&)[2]) {
        u32 bits = w[12] >> 12 & 15 | w[12] >> 24 & 240 | w[13] >> 4 & 0xf00 | w[13] >> 16 & 0xf000;
        u32 scales = short_at<48 + 2 * (J / 2)>(w) >> (6 * (J % 2)), low = word_at<4 * J>(w);
        u32 high = short_at<32 + 2 * J>(w);
        float d = half_to_float((u16)bits);
        scale[0] = __fmul_rn(d, float(2 * (scales & 7) + 1)) * 0.125f;
        scale[1] = __fmul_rn(d, float(2 * (scales >> 3 & 7) + 1)) * 0.125f;
#pragma unroll
        for (int k = 0; k < 4; k++) {
            u32 entry = (low >> (8 * k) & 255) | (high >> (4 * k) & 7) << 8;
            shifted_entry(table, entry, high >> (4 * k + 3) & 1, q[2 * k], q[2 * k + 1]);
        }
    }
};

}  // namespace blocks

// The type of a unit's weights, by its number in files.
#if WEIGHT == 2
using Weight = blocks::Q4_0;
#elif WEIGHT == 3
using Weight = blocks::Q4_1;
#elif WEIGHT == 6
using Weight = blocks::Q5_0;
#elif WEIGHT == 7
using Weight = blocks::Q5_1;
#elif WEIGHT == 8
using Weight = blocks::Q8_0;
#elif WEIGHT == 9
using Weight = blocks::Q8_1;
#elif WEIGHT == 10
using Weight = blocks::Q2_K;
#elif WEIGHT == 11
using Weight = blocks::Q3_K;
#elif WEIGHT == 12
using Weight = blocks::Q4_K;
#elif WEIGHT == 13
using Weight = blocks::Q5_K;
#elif WEIGHT == 14
using Weight = blocks::Q6_K;
#elif WEIGHT == 15
using Weight = blocks::Q8_K;
#elif WEIGHT == 16
using Weight = blocks::IQ2_XXS;
#elif WEIGHT == 17
using Weight = blocks::IQ2_XS;
#elif WEIGHT == 18
using Weight = blocks::IQ3_XXS;
#elif WEIGHT == 19
using Weight = blocks::IQ1_S;
#elif WEIGHT == 20
using Weight = blocks::IQ4_NL;
#elif WEIGHT == 21
using Weight = blocks::IQ3_S;
#elif WEIGHT == 22
using Weight = blocks::IQ2_S;
#elif WEIGHT == 23
using Weight = blocks::IQ4_XS;
#elif WEIGHT == 29
using Weight = blocks::IQ1_M;
#elif WEIGHT == 34
using Weight = blocks::TQ1_0;
#elif WEIGHT == 35
using Weight = blocks::TQ2_0;
#elif WEIGHT == 39
using Weight = blocks::MXFP4;
#elif WEIGHT == 40
using Weight = blocks::NVFP4;
#elif WEIGHT == 41
using Weight = blocks::Q1_0;
#elif WEIGHT == 42
using Weight = blocks::Q2_0;
#endif

// Words of registers for a group and what a misaligned load reads behind it.
template <class W>
constexpr int GROUP_WORDS = (W::BYTES + 3) / 4 + 1;

// Brings a group from any address to registers; reads up to 7 bytes on either side. With VECTORS the address is a
// multiple of 16, and nothing else is read.
template <class W, bool VECTORS>
__device__ __forceinline__ void load_group(const u8* from, u32 (&words)[GROUP_WORDS<W>]) {
    if constexpr (VECTORS) {
        static_assert(W::BYTES % 16 == 0, "whole vectors");
        const uint4* vectors = reinterpret_cast<const uint4*>(from);
#pragma unroll
        for (int i = 0; i < W::BYTES / 16; i++) {
            uint4 four = vectors[i];
            words[4 * i] = four.x, words[4 * i + 1] = four.y, words[4 * i + 2] = four.z, words[4 * i + 3] = four.w;
        }
        words[W::BYTES / 4] = 0;
    } else {
        u32 skew = (u32)(size_t)from & 3;
        const u32* whole = reinterpret_cast<const u32*>(from - skew);
        u32 last = whole[0];
#pragma unroll
        for (int i = 0; i < GROUP_WORDS<W> - 1; i++) {
            u32 next = whole[i + 1];
            words[i] = __funnelshift_r(last, next, 8 * skew);
            last = next;
        }
        words[GROUP_WORDS<W> - 1] = 0;
    }
}
