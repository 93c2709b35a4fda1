// Packed blocks on CUDA: from the bytes of a file to codes, scales and minima, in registers.
//
// A group is 256 consecutive values of a row, eight sub-blocks of 32. A type `W` says how many bytes a whole group has, what the
// scales and minima of sub-block J are, and what its codes are, four to a word: `word<J, H>(g, table, t)` is word t of half H.
//
//     value[i] = scale[i / 16] * (code[i] - OFFSET) + minimum[i / 16]
//
// the product and the sum rounded to f32 one after the other, which is what the `gruff-blocks` crate computes, bit for bit.
// Types without HALVES have one scale and one minimum for all 32; types without MINIMUM have none. Codes are in order; bytes
// from 0 to 255, or signed ones of types that have neither an OFFSET nor a MINIMUM.
//
// J and H are template arguments, so offsets are constants and a field costs a shift or a byte permutation; t is one of the
// four lanes that share a row's half of a sub-block, or a constant.
#pragma once

#include "common.cuh"

namespace blocks {

// Values of a group, and sub-blocks of 32 in it.
constexpr int GROUP = 256;
constexpr int SUB_BLOCKS = 8;

// Where a group's bytes are: words, halves and bytes at a byte offset that the compiler knows, and the word `i` words behind one.

// In registers, where `i` must be known as well.
struct Registers {
    const u32 *words;
    template <int O>
    __device__ __forceinline__ u32 word(int i) const {
        constexpr int skew = O % 4;
        if constexpr (skew == 0) return words[O / 4 + i];
        else return __funnelshift_r(words[O / 4 + i], words[O / 4 + i + 1], 8 * skew);
    }
    template <int O>
    __device__ __forceinline__ u32 byte() const {
        return (words[O / 4] >> (8 * (O % 4))) & 255;
    }
    // At an even offset.
    template <int O>
    __device__ __forceinline__ u32 two_bytes() const {
        static_assert(O % 2 == 0, "two bytes of one word");
        return (words[O / 4] >> (8 * (O % 4))) & 65535;
    }
};

// In memory, from an address that is a multiple of ALIGNMENT on; up to seven bytes on either side may be read. Words of which `i`
// is known, too, are read with their neighbours.
template <int ALIGNMENT>
struct Bytes {
    const u8 *at;
    template <int O>
    __device__ __forceinline__ u32 word(int i) const {
        if constexpr (ALIGNMENT % 4 == 0 && O % 4 == 0) {
            return *(const u32 *)(at + O + 4 * i);
        } else {
            // Neighbours share a word of memory, so that a row of them costs one load each.
            const u8 *first = at + O % 4;
            const u32 *whole = (const u32 *)(first - ((size_t)first & 3)) + O / 4 + i;
            return __funnelshift_r(whole[0], whole[1], 8 * ((u32)(size_t)first & 3));
        }
    }
    template <int O>
    __device__ __forceinline__ u32 byte() const {
        return at[O];
    }
    template <int O>
    __device__ __forceinline__ u32 two_bytes() const {
        if constexpr (ALIGNMENT % 2 == 0) return *(const u16 *)(at + O);
        else return at[O] | (u32)at[O + 1] << 8;
    }
};

// In memory at a multiple of 16, where every `i` is known: in vectors.
struct Vectors {
    const u8 *at;
    template <int O>
    __device__ __forceinline__ u32 word(int i) const {
        static_assert(O % 4 == 0, "a word of a vector");
        const uint4 four = ((const uint4 *)at)[(O + 4 * i) / 16];
        const int which = (O / 4 + i) % 4;
        return which == 0 ? four.x : which == 1 ? four.y : which == 2 ? four.z : four.w;
    }
    template <int O>
    __device__ __forceinline__ u32 byte() const {
        return word<O / 4 * 4>(0) >> (8 * (O % 4)) & 255;
    }
    template <int O>
    __device__ __forceinline__ u32 two_bytes() const {
        return word<O / 4 * 4>(0) >> (8 * (O % 4)) & 65535;
    }
};

template <int O, class G>
__device__ __forceinline__ float half_at(const G &g) {
    return half_to_float((u16)g.template two_bytes<O>());
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
    // What the address of a group is a multiple of wherever the file's tensor begins at a multiple of 4.
    static constexpr int ALIGNMENT = 2;
};

// Four-bit codes: the low halves of bytes are the first ones.
template <int H>
__device__ __forceinline__ u32 half_bytes(u32 packed) {
    return (packed >> (4 * H)) & 0x0f0f0f0fu;
}

struct Q4_0 : Plain {
    static constexpr int BYTES = 8 * 18;
    static constexpr int OFFSET = 8;
    template <int J, class G>
    __device__ static void scales(const G &g, float (&scale)[2], float (&)[2]) {
        scale[0] = half_at<18 * J>(g);
    }
    template <int J, int H, class G>
    __device__ static u32 word(const G &g, const u32 *, int t) {
        return half_bytes<H>(g.template word<18 * J + 2>(t));
    }
};

struct Q4_1 : Plain {
    static constexpr int BYTES = 8 * 20;
    static constexpr bool MINIMUM = true;
    static constexpr int ALIGNMENT = 4;
    template <int J, class G>
    __device__ static void scales(const G &g, float (&scale)[2], float (&minimum)[2]) {
        scale[0] = half_at<20 * J>(g);
        minimum[0] = half_at<20 * J + 2>(g);
    }
    template <int J, int H, class G>
    __device__ static u32 word(const G &g, const u32 *, int t) {
        return half_bytes<H>(g.template word<20 * J + 4>(t));
    }
};

// The fifth bits of four codes, from a word of 32 of them.
template <int H>
__device__ __forceinline__ u32 fifth_bits(u32 high, int t) {
    return spread_bits(high >> (16 * H + 4 * t)) << 4;
}

struct Q5_0 : Plain {
    static constexpr int BYTES = 8 * 22;
    static constexpr int OFFSET = 16;
    template <int J, class G>
    __device__ static void scales(const G &g, float (&scale)[2], float (&)[2]) {
        scale[0] = half_at<22 * J>(g);
    }
    template <int J, int H, class G>
    __device__ static u32 word(const G &g, const u32 *, int t) {
        return half_bytes<H>(g.template word<22 * J + 6>(t)) | fifth_bits<H>(g.template word<22 * J + 2>(0), t);
    }
};

struct Q5_1 : Plain {
    static constexpr int BYTES = 8 * 24;
    static constexpr bool MINIMUM = true;
    static constexpr int ALIGNMENT = 4;
    template <int J, class G>
    __device__ static void scales(const G &g, float (&scale)[2], float (&minimum)[2]) {
        scale[0] = half_at<24 * J>(g);
        minimum[0] = half_at<24 * J + 2>(g);
    }
    template <int J, int H, class G>
    __device__ static u32 word(const G &g, const u32 *, int t) {
        return half_bytes<H>(g.template word<24 * J + 8>(t)) | fifth_bits<H>(g.template word<24 * J + 4>(0), t);
    }
};

struct Q8_0 : Plain {
    static constexpr int BYTES = 8 * 34;
    template <int J, class G>
    __device__ static void scales(const G &g, float (&scale)[2], float (&)[2]) {
        scale[0] = half_at<34 * J>(g);
    }
    template <int J, int H, class G>
    __device__ static u32 word(const G &g, const u32 *, int t) {
        return g.template word<34 * J + 2 + 16 * H>(t);
    }
};

struct Q8_1 : Plain {
    static constexpr int BYTES = 8 * 36;
    static constexpr int ALIGNMENT = 4;
    template <int J, class G>
    __device__ static void scales(const G &g, float (&scale)[2], float (&)[2]) {
        scale[0] = half_at<36 * J>(g);
    }
    template <int J, int H, class G>
    __device__ static u32 word(const G &g, const u32 *, int t) {
        return g.template word<36 * J + 4 + 16 * H>(t);
    }
};

// Two bits of each of 32 bytes from byte O on.
template <int O, int J, int H, class G>
__device__ __forceinline__ u32 two_bits(const G &g, int t) {
    return (g.template word<O + 32 * (J / 4) + 16 * H>(t) >> (2 * (J % 4))) & 0x03030303u;
}

struct Q2_K : Plain {
    static constexpr int BYTES = 84;
    static constexpr bool HALVES = true;
    static constexpr bool MINIMUM = true;
    static constexpr int ALIGNMENT = 4;
    template <int J, class G>
    __device__ static void scales(const G &g, float (&scale)[2], float (&minimum)[2]) {
        float d = half_at<80>(g), dmin = half_at<82>(g);
        u32 first = g.template byte<2 * J>(), second = g.template byte<2 * J + 1>();
        scale[0] = __fmul_rn(d, float(first & 15)), scale[1] = __fmul_rn(d, float(second & 15));
        minimum[0] = -__fmul_rn(dmin, float(first >> 4)), minimum[1] = -__fmul_rn(dmin, float(second >> 4));
    }
    template <int J, int H, class G>
    __device__ static u32 word(const G &g, const u32 *, int t) {
        return two_bits<16, J, H>(g, t);
    }
};

struct Q3_K : Plain {
    static constexpr int BYTES = 110;
    static constexpr bool HALVES = true;
    static constexpr int OFFSET = 4;
    template <int I, class G>
    __device__ static float scale_of(const G &g) {
        u32 low = (g.template byte<96 + I % 8>() >> (4 * (I / 8))) & 15;
        u32 high = (g.template byte<104 + I % 4>() >> (2 * (I / 4))) & 3;
        return __fmul_rn(half_at<108>(g), float(int(low | high << 4) - 32));
    }
    template <int J, class G>
    __device__ static void scales(const G &g, float (&scale)[2], float (&)[2]) {
        scale[0] = scale_of<2 * J>(g), scale[1] = scale_of<2 * J + 1>(g);
    }
    template <int J, int H, class G>
    __device__ static u32 word(const G &g, const u32 *, int t) {
        return two_bits<32, J, H>(g, t) | (move_bits<J, 2>(g.template word<16 * H>(t)) & 0x04040404u);
    }
};

// Scales and minima of Q4_K and Q5_K.
template <int J, class G>
__device__ __forceinline__ void scale_min_k4(const G &g, float &scale, float &minimum) {
    u32 s, m;
    if constexpr (J < 4) {
        s = g.template byte<4 + J>() & 63;
        m = g.template byte<8 + J>() & 63;
    } else {
        u32 low = g.template byte<8 + J>();
        s = (low & 15) | (g.template byte<J>() >> 6) << 4;
        m = (low >> 4) | (g.template byte<4 + J>() >> 6) << 4;
    }
    scale = __fmul_rn(half_at<0>(g), float(s));
    minimum = -__fmul_rn(half_at<2>(g), float(m));
}

struct Q4_K : Plain {
    static constexpr int BYTES = 144;
    static constexpr bool MINIMUM = true;
    static constexpr int ALIGNMENT = 4;
    template <int J, class G>
    __device__ static void scales(const G &g, float (&scale)[2], float (&minimum)[2]) {
        scale_min_k4<J>(g, scale[0], minimum[0]);
    }
    template <int J, int H, class G>
    __device__ static u32 word(const G &g, const u32 *, int t) {
        return half_bytes<J % 2>(g.template word<16 + 32 * (J / 2) + 16 * H>(t));
    }
};

struct Q5_K : Plain {
    static constexpr int BYTES = 176;
    static constexpr bool MINIMUM = true;
    static constexpr int ALIGNMENT = 4;
    template <int J, class G>
    __device__ static void scales(const G &g, float (&scale)[2], float (&minimum)[2]) {
        scale_min_k4<J>(g, scale[0], minimum[0]);
    }
    template <int J, int H, class G>
    __device__ static u32 word(const G &g, const u32 *, int t) {
        return half_bytes<J % 2>(g.template word<48 + 32 * (J / 2) + 16 * H>(t)) |
               (move_bits<J, 4>(g.template word<16 + 16 * H>(t)) & 0x10101010u);
    }
};

struct Q6_K : Plain {
    static constexpr int BYTES = 210;
    static constexpr bool HALVES = true;
    static constexpr int OFFSET = 32;
    template <int J, class G>
    __device__ static void scales(const G &g, float (&scale)[2], float (&)[2]) {
        float d = half_at<208>(g);
        scale[0] = __fmul_rn(d, float(int((signed char)g.template byte<192 + 2 * J>())));
        scale[1] = __fmul_rn(d, float(int((signed char)g.template byte<193 + 2 * J>())));
    }
    template <int J, int H, class G>
    __device__ static u32 word(const G &g, const u32 *, int t) {
        return half_bytes<J / 2 % 2>(g.template word<64 * (J / 4) + 32 * (J % 2) + 16 * H>(t)) |
               (move_bits<2 * (J % 4), 4>(g.template word<128 + 32 * (J / 4) + 16 * H>(t)) & 0x30303030u);
    }
};

struct Q8_K : Plain {
    static constexpr int BYTES = 292;
    static constexpr int ALIGNMENT = 4;
    template <int J, class G>
    __device__ static void scales(const G &g, float (&scale)[2], float (&)[2]) {
        scale[0] = __uint_as_float(g.template word<0>(0));
    }
    template <int J, int H, class G>
    __device__ static u32 word(const G &g, const u32 *, int t) {
        return g.template word<4 + 32 * J + 16 * H>(t);
    }
};

// The digit that 3^n says of four bytes of base-3 digits.
__device__ __forceinline__ u32 trits(u32 bytes, u32 power) {
    u32 even = (((bytes & 0x00ff00ffu) * power) & 0x00ff00ffu) * 3;
    u32 odd = ((((bytes >> 8) & 0x00ff00ffu) * power) & 0x00ff00ffu) * 3;
    return ((even >> 8) & 0x00ff00ffu) | (odd & 0xff00ff00u);
}

// Three to the power n, below 5.
__device__ constexpr u32 three_to(int n) { return n == 4 ? 81 : 0x1b090301u >> (8 * n) & 255; }

struct TQ1_0 : Plain {
    static constexpr int BYTES = 54;
    static constexpr int OFFSET = 1;
    template <int J, class G>
    __device__ static void scales(const G &g, float (&scale)[2], float (&)[2]) {
        scale[0] = half_at<52>(g);
    }
    template <int J, int H, class G>
    __device__ static u32 word(const G &g, const u32 *, int t) {
        if constexpr (J < 5) return trits(g.template word<16 * H>(t), three_to(J));
        else if constexpr (J < 7) return trits(g.template word<32>(t), three_to(2 * J - 10 + H));
        else if constexpr (H == 0) return trits(g.template word<32>(t), three_to(4));
        else return trits(g.template word<48>(0), three_to(t));
    }
};

struct TQ2_0 : Plain {
    static constexpr int BYTES = 66;
    static constexpr int OFFSET = 1;
    template <int J, class G>
    __device__ static void scales(const G &g, float (&scale)[2], float (&)[2]) {
        scale[0] = half_at<64>(g);
    }
    template <int J, int H, class G>
    __device__ static u32 word(const G &g, const u32 *, int t) {
        return two_bits<0, J, H>(g, t);
    }
};

struct Q1_0 : Plain {
    static constexpr int BYTES = 2 * 18;
    static constexpr int OFFSET = 1;
    template <int J, class G>
    __device__ static void scales(const G &g, float (&scale)[2], float (&)[2]) {
        scale[0] = half_at<18 * (J / 4)>(g);
    }
    template <int J, int H, class G>
    __device__ static u32 word(const G &g, const u32 *, int t) {
        return spread_bits(g.template word<18 * (J / 4) + 2 + 4 * (J % 4)>(0) >> (16 * H + 4 * t)) << 1;
    }
};

struct Q2_0 : Plain {
    static constexpr int BYTES = 4 * 18;
    static constexpr int OFFSET = 1;
    template <int J, class G>
    __device__ static void scales(const G &g, float (&scale)[2], float (&)[2]) {
        scale[0] = half_at<18 * (J / 2)>(g);
    }
    template <int J, int H, class G>
    __device__ static u32 word(const G &g, const u32 *, int t) {
        u32 four = (g.template word<18 * (J / 2) + 2 + 8 * (J % 2) + 4 * H>(0) >> (8 * t)) & 255;
        u32 twos = (four | four << 12) & 0x000f000fu;
        return (twos | twos << 6) & 0x03030303u;
    }
};

// The sixteen levels of IQ4_NL and IQ4_XS, and the sixteen E2M1 numbers, doubled; four a word.
#define IQ4_LEVELS {0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u}
#define E2M1_LEVELS {0x03020100u, 0x0c080604u, 0xfdfeff00u, 0xf4f8fafcu}

// The entries of a table of 16 for the low or high halves of four bytes.
template <int H>
__device__ __forceinline__ u32 look_up(const u32 (&table)[4], u32 packed) {
    u32 low, high;
    look_up_16(table, packed, low, high);
    return H == 0 ? low : high;
}

struct IQ4_NL : Plain {
    static constexpr int BYTES = 8 * 18;
    template <int J, class G>
    __device__ static void scales(const G &g, float (&scale)[2], float (&)[2]) {
        scale[0] = half_at<18 * J>(g);
    }
    template <int J, int H, class G>
    __device__ static u32 word(const G &g, const u32 *, int t) {
        const u32 levels[4] = IQ4_LEVELS;
        return look_up<H>(levels, g.template word<18 * J + 2>(t));
    }
};

struct IQ4_XS : Plain {
    static constexpr int BYTES = 136;
    static constexpr int ALIGNMENT = 4;
    template <int J, class G>
    __device__ static void scales(const G &g, float (&scale)[2], float (&)[2]) {
        u32 low = (g.template byte<4 + J / 2>() >> (4 * (J % 2))) & 15;
        u32 high = (g.template two_bytes<2>() >> (2 * J)) & 3;
        scale[0] = __fmul_rn(half_at<0>(g), float(int(low | high << 4) - 32));
    }
    template <int J, int H, class G>
    __device__ static u32 word(const G &g, const u32 *, int t) {
        const u32 levels[4] = IQ4_LEVELS;
        return look_up<H>(levels, g.template word<8 + 16 * J>(t));
    }
};

struct MXFP4 : Plain {
    static constexpr int BYTES = 8 * 17;
    static constexpr int ALIGNMENT = 1;
    template <int J, class G>
    __device__ static void scales(const G &g, float (&scale)[2], float (&)[2]) {
        u32 e = g.template byte<17 * J>();
        scale[0] = __uint_as_float(e < 2 ? 0x00200000u << e : (e - 1) << 23);
    }
    template <int J, int H, class G>
    __device__ static u32 word(const G &g, const u32 *, int t) {
        const u32 levels[4] = E2M1_LEVELS;
        return look_up<H>(levels, g.template word<17 * J + 1>(t));
    }
};

struct NVFP4 : Plain {
    static constexpr int BYTES = 4 * 36;
    static constexpr bool HALVES = true;
    static constexpr int ALIGNMENT = 4;
    __device__ static float scale_of(u32 code) {
        u32 exponent = code >> 3 & 15, mantissa = code & 7;
        float normal = __uint_as_float((exponent + 119) << 23 | mantissa << 20);
        float value = exponent == 0 ? float(mantissa) * (1.0f / 1024.0f) : normal;
        return code == 0x7f ? 0.0f : value;
    }
    template <int J, class G>
    __device__ static void scales(const G &g, float (&scale)[2], float (&)[2]) {
        constexpr int block = 36 * (J / 2), first = 2 * (J % 2);
        scale[0] = scale_of(g.template byte<block + first>()), scale[1] = scale_of(g.template byte<block + first + 1>());
    }
    template <int J, int H, class G>
    __device__ static u32 word(const G &g, const u32 *, int t) {
        const u32 levels[4] = E2M1_LEVELS;
        u32 packed = g.template word<36 * (J / 2) + 4 + 16 * (J % 2) + 8 * H>(t % 2);
        return look_up<0>(levels, packed >> (4 * (t / 2)));
    }
};

// Word t % 2 of an entry of eight values.
__device__ __forceinline__ u32 entry_of_8(const u32 *table, u32 entry, int t) { return table[2 * entry + t % 2]; }

struct IQ2_XXS : Plain {
    static constexpr int BYTES = 66;
    static constexpr int TABLE = 2 * 256;
    template <int J, class G>
    __device__ static void scales(const G &g, float (&scale)[2], float (&)[2]) {
        scale[0] = __fmul_rn(half_at<0>(g), 0.5f + float(g.template word<6 + 8 * J>(0) >> 28)) * 0.25f;
    }
    template <int J, int H, class G>
    __device__ static u32 word(const G &g, const u32 *table, int t) {
        const int k = 2 * H + t / 2;
        u32 signs = eight_signs(g.template word<6 + 8 * J>(0) >> (7 * k) & 127);
        return negate_where(entry_of_8(table, g.template word<2 + 8 * J>(0) >> (8 * k) & 255, t), signs >> (4 * (t % 2)));
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
    template <int J, class G>
    __device__ static void scales(const G &g, float (&scale)[2], float (&)[2]) {
        half_byte_scales(half_at<0>(g), g.template byte<66 + J>(), scale);
    }
    template <int J, int H, class G>
    __device__ static u32 word(const G &g, const u32 *table, int t) {
        u32 both = g.template word<2 + 8 * J + 4 * H>(0) >> (16 * (t / 2)) & 65535;
        return negate_where(entry_of_8(table, both & 511, t), eight_signs(both >> 9) >> (4 * (t % 2)));
    }
};

struct IQ2_S : Plain {
    static constexpr int BYTES = 82;
    static constexpr bool HALVES = true;
    static constexpr int TABLE = 2 * 1024;
    template <int J, class G>
    __device__ static void scales(const G &g, float (&scale)[2], float (&)[2]) {
        half_byte_scales(half_at<0>(g), g.template byte<74 + J>(), scale);
    }
    template <int J, int H, class G>
    __device__ static u32 word(const G &g, const u32 *table, int t) {
        const int k = 2 * H + t / 2;
        u32 low = g.template word<2 + 4 * J>(0) >> (8 * k) & 255, high = g.template byte<66 + J>() >> (2 * k) & 3;
        return negate_where(entry_of_8(table, low | high << 8, t), g.template word<34 + 4 * J>(0) >> (8 * k + 4 * (t % 2)));
    }
};

struct IQ3_XXS : Plain {
    static constexpr int BYTES = 98;
    static constexpr int TABLE = 256;
    template <int J, class G>
    __device__ static void scales(const G &g, float (&scale)[2], float (&)[2]) {
        scale[0] = __fmul_rn(half_at<0>(g), 0.5f + float(g.template word<66 + 4 * J>(0) >> 28)) * 0.5f;
    }
    template <int J, int H, class G>
    __device__ static u32 word(const G &g, const u32 *table, int t) {
        u32 signs = eight_signs(g.template word<66 + 4 * J>(0) >> (7 * (2 * H + t / 2)) & 127);
        return negate_where(table[g.template word<2 + 8 * J + 4 * H>(0) >> (8 * t) & 255], signs >> (4 * (t % 2)));
    }
};

struct IQ3_S : Plain {
    static constexpr int BYTES = 110;
    static constexpr int TABLE = 512;
    template <int J, class G>
    __device__ static void scales(const G &g, float (&scale)[2], float (&)[2]) {
        u32 half_byte = g.template byte<106 + J / 2>() >> (4 * (J % 2)) & 15;
        scale[0] = __fmul_rn(half_at<0>(g), float(2 * half_byte + 1));
    }
    template <int J, int H, class G>
    __device__ static u32 word(const G &g, const u32 *table, int t) {
        const int k = 4 * H + t;
        u32 low = g.template word<2 + 8 * J + 4 * H>(0) >> (8 * t) & 255, high = g.template byte<66 + J>() >> k & 1;
        return negate_where(table[low | high << 8], g.template word<74 + 4 * J>(0) >> (4 * k));
    }
};

// The book of the IQ1 types holds g of {-1, 0, 1} as 8 g + 16; a group of eight adds or subtracts 1 (delta is an eighth),
// so that code - 16 is eight times what the scale multiplies.
__device__ __forceinline__ u32 shifted_entry(const u32 *table, u32 entry, u32 negative, int t) {
    return entry_of_8(table, entry, t) + (negative ? 0u - 0x01010101u : 0x01010101u);
}

struct IQ1_S : Plain {
    static constexpr int BYTES = 50;
    static constexpr int OFFSET = 16;
    static constexpr int TABLE = 2 * 2048;
    template <int J, class G>
    __device__ static void scales(const G &g, float (&scale)[2], float (&)[2]) {
        scale[0] = __fmul_rn(half_at<0>(g), float(2 * (g.template two_bytes<34 + 2 * J>() >> 12 & 7) + 1)) * 0.125f;
    }
    template <int J, int H, class G>
    __device__ static u32 word(const G &g, const u32 *table, int t) {
        const int k = 2 * H + t / 2;
        u32 low = g.template word<2 + 4 * J>(0) >> (8 * k) & 255, high = g.template two_bytes<34 + 2 * J>();
        return shifted_entry(table, low | (high >> (3 * k) & 7) << 8, high >> 15, t);
    }
};

struct IQ1_M : Plain {
    static constexpr int BYTES = 56;
    static constexpr bool HALVES = true;
    static constexpr int OFFSET = 16;
    static constexpr int TABLE = 2 * 2048;
    static constexpr int ALIGNMENT = 4;
    template <int J, class G>
    __device__ static void scales(const G &g, float (&scale)[2], float (&)[2]) {
        u32 first = g.template word<48>(0), last = g.template word<52>(0);
        u32 bits = first >> 12 & 15 | first >> 24 & 240 | last >> 4 & 0xf00 | last >> 16 & 0xf000;
        u32 scales = g.template two_bytes<48 + 2 * (J / 2)>() >> (6 * (J % 2));
        float d = half_to_float((u16)bits);
        scale[0] = __fmul_rn(d, float(2 * (scales & 7) + 1)) * 0.125f;
        scale[1] = __fmul_rn(d, float(2 * (scales >> 3 & 7) + 1)) * 0.125f;
    }
    template <int J, int H, class G>
    __device__ static u32 word(const G &g, const u32 *table, int t) {
        const int k = 2 * H + t / 2;
        u32 low = g.template word<4 * J>(0) >> (8 * k) & 255, high = g.template two_bytes<32 + 2 * J>() >> (4 * k) & 15;
        return shifted_entry(table, low | (high & 7) << 8, high >> 3, t);
    }
};

// All 32 codes of sub-block J, four a word, with its scales and minima.
template <class W, int J, class G>
__device__ __forceinline__ void decode(const G &g, const u32 *table, u32 (&q)[8], float (&scale)[2], float (&minimum)[2]) {
    W::template scales<J>(g, scale, minimum);
#pragma unroll
    for (int t = 0; t < 4; t++) {
        q[t] = W::template word<J, 0>(g, table, t);
        q[4 + t] = W::template word<J, 1>(g, table, t);
    }
}

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
