// Packed blocks on CUDA: from what lies in a strip (`cuda/strips`) to codes, scales and minima, in registers.
//
// A group is 256 consecutive values of a row, and each of four lanes has 64 of them to itself: two sub-blocks of 32, S = 0 and 1.
// A type (`Type`, by its number in files) says how many bytes a lane has to itself (OWN) and how many the four of a row share (ROW), what the scales and minima
// of sub-block S are, and what its codes are, four to a word: `word<S, I>(share, book)` is word I of eight.
//
//     value[i] = scale[i / 16] * (code[i] - OFFSET) + minimum[i / 16]
//
// the product and the sum rounded to f32 one after the other, which is what the `gruff-blocks` crate computes, bit for bit.
// Types without HALVES have one scale and one minimum for all 32; types without MINIMUM have none. Types with SIGNS have codes above
// 0 whose signs `signs<S>(share)` gives. The bytes of a word of codes are its values 0, 2, 1, 3 ("crossed"), so that the even and the
// odd bytes, each in 16 bits, are pairs of neighbours.
//
// S and I are template arguments, so offsets are constants; t is which of the four lanes it is.
#pragma once

#include "common.cuh"

namespace blocks {

// Values of a group, lanes that share it, and values of each.
constexpr int GROUP = 256;
constexpr int LANES = 4;
constexpr int RUN = 64;
// Rows of a strip.
constexpr int STRIP = 8;

// What one lane has of one row's group.
template <int OWN, int ROW>
struct Bytes {
    u32 own_words[(OWN + 3) / 4 + 1];
    u32 row_words[(ROW + 3) / 4 + 1];

    template <int O>
    __device__ __forceinline__ u32 word() const {
        static_assert(O % 4 == 0, "whole words");
        return own_words[O / 4];
    }
    template <int O>
    __device__ __forceinline__ u32 byte() const {
        return own_words[O / 4] >> (8 * (O % 4)) & 255;
    }
    template <int O>
    __device__ __forceinline__ u32 two_bytes() const {
        static_assert(O % 2 == 0, "two bytes of one word");
        return O % 4 == 0 ? own_words[O / 4] & 65535 : own_words[O / 4] >> 16;
    }
    // Three bytes, with nothing behind them.
    template <int O>
    __device__ __forceinline__ u32 three_bytes() const {
        static_assert(O % 4 == 0 && OWN == O + 3, "the last ones");
        return own_words[O / 4];
    }
};

template <int O, class G>
__device__ __forceinline__ float half_at(const G &g) {
    return half_to_float((u16)g.template two_bytes<O>());
}

// A whole number below 2^23 as a float: of bits that nothing stands above.
__device__ __forceinline__ float small(u32 bits) { return __uint_as_float(bits | 0x4b000000u) - 8388608.0f; }

// Moves bit (or field that begins at) FROM of each byte to TO; what surrounds it is for the caller to mask.
template <int FROM, int TO>
__device__ __forceinline__ u32 move_bits(u32 bytes) {
    if constexpr (FROM <= TO) return bytes << (TO - FROM);
    else return bytes >> (FROM - TO);
}

// The entries of a table of 16 bytes for the four lowest half bytes of a word.
__device__ __forceinline__ u32 look_up_4(const uint4 &table, u32 index, u32 choose) {
    return ptx::permute(ptx::permute(table.x, table.y, index), ptx::permute(table.z, table.w, index), choose);
}

// The entries for all eight: of the lower two bytes to `front`, of the upper two to `back`.
__device__ __forceinline__ void look_up_8(const uint4 &table, u32 codes, u32 &front, u32 &back) {
    const u32 index = codes & 0x77777777u, choose = 0x32103210u | (codes >> 1 & 0x44444444u);
    front = look_up_4(table, index, choose), back = look_up_4(table, index >> 16, choose >> 16);
}

// What a type has unless it says otherwise.
template <int OWN_, int ROW_>
struct Plain {
    static constexpr int OWN = OWN_;
    static constexpr int ROW = ROW_;
    using Share = Bytes<OWN, ROW>;
    static constexpr bool HALVES = false;
    static constexpr bool MINIMUM = false;
    static constexpr bool SIGNS = false;
    static constexpr int OFFSET = 0;
    // 32-bit words of the table that decoding looks values up in.
    static constexpr int TABLE = 0;
    // Whether codes are the half bytes of the lane's first eight words, those of S = 0 the low ones, and nothing else.
    static constexpr bool NIBBLES = false;
    // Whether half bytes are numbers of LEVELS, which are the codes; their bytes are not crossed.
    static constexpr bool LEVELS = false;
    template <int S>
    __device__ static u32 signs(const Share &) {
        return 0;
    }
};

// A type, by its number in files.
template <int NUMBER> struct Type;

// Codes of four bits, from the lane's first eight words.
template <int S, int I, class G>
__device__ __forceinline__ u32 half_bytes(const G &g) {
    return (S == 0 ? g.template word<4 * I>() : g.template word<4 * I>() >> 4) & 0x0f0f0f0fu;
}

// Bit TO of each byte, from 64 bits that begin at O: word m of codes has bits m % 8 of word m / 8.
template <int O, int TO, int S, int I, class G>
__device__ __forceinline__ u32 one_bit(const G &g) {
    return move_bits<I, TO>(g.template word<O + 4 * S>()) & 0x01010101u << TO;
}

// Two bits of each byte from bit TO on, from 128 bits that begin at O: word m of codes has bits 2 (m % 4) of word m / 4.
template <int O, int TO, int S, int I, class G>
__device__ __forceinline__ u32 two_bits(const G &g) {
    return move_bits<2 * (I % 4), TO>(g.template word<O + 8 * S + 4 * (I / 4)>()) & 0x03030303u << TO;
}

// Types of codes of four bits and nothing else.
template <int OWN, int ROW>
struct HalfBytes : Plain<OWN, ROW> {
    static constexpr bool NIBBLES = true;
    template <int S, int I, class G>
    __device__ static u32 word(const G &g, const u32 *) {
        return half_bytes<S, I>(g);
    }
};

// Of codes of five bits, the fifth behind the others.
template <int OWN, int ROW>
struct FiveBits : Plain<OWN, ROW> {
    template <int S, int I, class G>
    __device__ static u32 word(const G &g, const u32 *) {
        return half_bytes<S, I>(g) | one_bit<32, 4, S, I>(g);
    }
};

// Of codes of two bits.
template <int OWN, int ROW>
struct TwoBits : Plain<OWN, ROW> {
    template <int S, int I, class G>
    __device__ static u32 word(const G &g, const u32 *) {
        return two_bits<0, 0, S, I>(g);
    }
};

// Of codes of eight bits, moved by 128 so that they are not negative.
template <int OWN, int ROW>
struct WholeBytes : Plain<OWN, ROW> {
    static constexpr int OFFSET = 128;
    template <int S, int I, class G>
    __device__ static u32 word(const G &g, const u32 *) {
        return g.template word<32 * S + 4 * I>();
    }
};

// Q4_0.
template <> struct Type<2> : HalfBytes<36, 0> {
    static constexpr int OFFSET = 8;
    template <int S, class G>
    __device__ static void scales(const G &g, int, float (&scale)[2], float (&)[2]) {
        scale[0] = half_at<32 + 2 * S>(g);
    }
};

// Q4_1.
template <> struct Type<3> : HalfBytes<40, 0> {
    static constexpr bool MINIMUM = true;
    template <int S, class G>
    __device__ static void scales(const G &g, int, float (&scale)[2], float (&minimum)[2]) {
        scale[0] = half_at<32 + 4 * S>(g);
        minimum[0] = half_at<34 + 4 * S>(g);
    }
};

// Q5_0.
template <> struct Type<6> : FiveBits<44, 0> {
    static constexpr int OFFSET = 16;
    template <int S, class G>
    __device__ static void scales(const G &g, int, float (&scale)[2], float (&)[2]) {
        scale[0] = half_at<40 + 2 * S>(g);
    }
};

// Q5_1.
template <> struct Type<7> : FiveBits<48, 0> {
    static constexpr bool MINIMUM = true;
    template <int S, class G>
    __device__ static void scales(const G &g, int, float (&scale)[2], float (&minimum)[2]) {
        scale[0] = half_at<40 + 4 * S>(g);
        minimum[0] = half_at<42 + 4 * S>(g);
    }
};

// Q8_0.
template <> struct Type<8> : WholeBytes<68, 0> {
    template <int S, class G>
    __device__ static void scales(const G &g, int, float (&scale)[2], float (&)[2]) {
        scale[0] = half_at<64 + 2 * S>(g);
    }
};

// Q8_1.
template <> struct Type<9> : WholeBytes<72, 0> {
    template <int S, class G>
    __device__ static void scales(const G &g, int, float (&scale)[2], float (&)[2]) {
        scale[0] = half_at<64 + 4 * S>(g);
    }
};

// Q2_K.
template <> struct Type<10> : TwoBits<20, 4> {
    static constexpr bool HALVES = true;
    static constexpr bool MINIMUM = true;
    template <int S, class G>
    __device__ static void scales(const G &g, int, float (&scale)[2], float (&minimum)[2]) {
        const float2 d = half2_to_float2(g.row_words[0]);
        const u32 both = g.template two_bytes<16 + 2 * S>();
        scale[0] = __fmul_rn(d.x, small(both & 15)), scale[1] = __fmul_rn(d.x, small(both >> 8 & 15));
        minimum[0] = -__fmul_rn(d.y, small(both >> 4 & 15)), minimum[1] = -__fmul_rn(d.y, small(both >> 12));
    }
};

// Q3_K.
template <> struct Type<11> : Plain<27, 2> {
    static constexpr bool HALVES = true;
    static constexpr int OFFSET = 4;
    template <int S, class G>
    __device__ static void scales(const G &g, int, float (&scale)[2], float (&)[2]) {
        const float d = half_to_float((u16)g.row_words[0]);
        const u32 all = g.template three_bytes<24>();
        scale[0] = __fmul_rn(d, small(all >> (12 * S) & 63) - 32.0f);
        scale[1] = __fmul_rn(d, small(all >> (12 * S + 6) & 63) - 32.0f);
    }
    template <int S, int I, class G>
    __device__ static u32 word(const G &g, const u32 *) {
        return two_bits<0, 0, S, I>(g) | one_bit<16, 2, S, I>(g);
    }
};

// Scales and minima of Q4_K and Q5_K: six bits each, of which a lane has four.
template <int O, int S, class G>
__device__ __forceinline__ void scale_and_minimum(const G &g, float &scale, float &minimum) {
    const float2 d = half2_to_float2(g.row_words[0]);
    const u32 all = g.template three_bytes<O>();
    scale = __fmul_rn(d.x, small(all >> (12 * S) & 63));
    minimum = -__fmul_rn(d.y, small(all >> (12 * S + 6) & 63));
}

// Q4_K.
template <> struct Type<12> : HalfBytes<35, 4> {
    static constexpr bool MINIMUM = true;
    template <int S, class G>
    __device__ static void scales(const G &g, int, float (&scale)[2], float (&minimum)[2]) {
        scale_and_minimum<32, S>(g, scale[0], minimum[0]);
    }
};

// Q5_K.
template <> struct Type<13> : FiveBits<43, 4> {
    static constexpr bool MINIMUM = true;
    template <int S, class G>
    __device__ static void scales(const G &g, int, float (&scale)[2], float (&minimum)[2]) {
        scale_and_minimum<40, S>(g, scale[0], minimum[0]);
    }
};

// Q6_K.
template <> struct Type<14> : Plain<52, 2> {
    static constexpr bool HALVES = true;
    static constexpr int OFFSET = 32;
    template <int S, class G>
    __device__ static void scales(const G &g, int, float (&scale)[2], float (&)[2]) {
        const float d = half_to_float((u16)g.row_words[0]);
        const u32 all = g.template word<48>();
        scale[0] = __fmul_rn(d, float((int)(i8)(all >> (16 * S))));
        scale[1] = __fmul_rn(d, float((int)(i8)(all >> (16 * S + 8))));
    }
    template <int S, int I, class G>
    __device__ static u32 word(const G &g, const u32 *) {
        return half_bytes<S, I>(g) | two_bits<32, 4, S, I>(g);
    }
};

// Q8_K.
template <> struct Type<15> : WholeBytes<64, 4> {
    template <int S, class G>
    __device__ static void scales(const G &g, int, float (&scale)[2], float (&)[2]) {
        scale[0] = __uint_as_float(g.row_words[0]);
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

// TQ1_0. Word m of codes is digit m % 5 of word m / 5 of three; the last are the digits of one byte.
template <> struct Type<34> : Plain<13, 2> {
    static constexpr int OFFSET = 1;
    template <int S, class G>
    __device__ static void scales(const G &g, int, float (&scale)[2], float (&)[2]) {
        scale[0] = half_to_float((u16)g.row_words[0]);
    }
    template <int S, int I, class G>
    __device__ static u32 word(const G &g, const u32 *) {
        constexpr int M = 8 * S + I;
        if constexpr (M < 15) {
            return trits(g.template word<M / 5 * 4>(), three_to(M % 5));
        } else {
            const u32 last = g.template byte<12>();
            const u32 digits[4] = {last * 3 >> 8, (last * 9 & 255) * 3 >> 8, (last * 3 & 255) * 3 >> 8, (last * 27 & 255) * 3 >> 8};
            return digits[0] | digits[1] << 8 | digits[2] << 16 | digits[3] << 24;
        }
    }
};

// TQ2_0.
template <> struct Type<35> : TwoBits<16, 2> {
    static constexpr int OFFSET = 1;
    template <int S, class G>
    __device__ static void scales(const G &g, int, float (&scale)[2], float (&)[2]) {
        scale[0] = half_to_float((u16)g.row_words[0]);
    }
};

// Q1_0.
template <> struct Type<41> : Plain<8, 4> {
    static constexpr int OFFSET = 1;
    template <int S, class G>
    __device__ static void scales(const G &g, int t, float (&scale)[2], float (&)[2]) {
        scale[0] = half_to_float((u16)(g.row_words[0] >> (t / 2 * 16)));
    }
    template <int S, int I, class G>
    __device__ static u32 word(const G &g, const u32 *) {
        return one_bit<0, 1, S, I>(g);
    }
};

// Q2_0.
template <> struct Type<42> : TwoBits<18, 0> {
    static constexpr int OFFSET = 1;
    template <int S, class G>
    __device__ static void scales(const G &g, int, float (&scale)[2], float (&)[2]) {
        scale[0] = half_at<16>(g);
    }
};

// The levels of a word of codes of four bits: of values 0 and 1, of 2 and 3, in 16 bits each.
template <int S, int I, class G>
__device__ __forceinline__ void look_up(const u32 *book, const G &g, u32 &first, u32 &second) {
    u32 front, back;
    look_up_8(*(const uint4 *)book, g.template word<4 * I>(), front, back);
    first = S == 0 ? front & 0x00ff00ffu : ptx::permute(front, 0, 0x4341);
    second = S == 0 ? back & 0x00ff00ffu : ptx::permute(back, 0, 0x4341);
}

// What types with LEVELS have: these are in the book, moved by 128.
template <int OWN, int ROW>
struct Levels : Plain<OWN, ROW> {
    static constexpr bool LEVELS = true;
    static constexpr int OFFSET = 128;
    static constexpr int TABLE = 4;
    template <int S, int I, class G>
    __device__ static void pairs(const G &g, const u32 *book, u32 &first, u32 &second) {
        look_up<S, I>(book, g, first, second);
    }
    template <int S, int I, class G>
    __device__ static u32 word(const G &g, const u32 *book) {
        u32 first, second;
        look_up<S, I>(book, g, first, second);
        return first | second << 8;
    }
};

// IQ4_NL.
template <> struct Type<20> : Levels<36, 0> {
    template <int S, class G>
    __device__ static void scales(const G &g, int, float (&scale)[2], float (&)[2]) {
        scale[0] = half_at<32 + 2 * S>(g);
    }
};

// IQ4_XS.
template <> struct Type<23> : Levels<33, 4> {
    template <int S, class G>
    __device__ static void scales(const G &g, int t, float (&scale)[2], float (&)[2]) {
        const u32 low = g.template byte<32>() >> (4 * S) & 15, high = g.row_words[0] >> (16 + 4 * t + 2 * S) & 3;
        scale[0] = __fmul_rn(half_to_float((u16)g.row_words[0]), small(low | high << 4) - 32.0f);
    }
};

// MXFP4.
template <> struct Type<39> : Levels<34, 0> {
    template <int S, class G>
    __device__ static void scales(const G &g, int, float (&scale)[2], float (&)[2]) {
        const u32 e = g.template byte<32 + S>();
        scale[0] = __uint_as_float(e < 2 ? 0x00200000u << e : (e - 1) << 23);
    }
};

// NVFP4.
template <> struct Type<40> : Levels<36, 0> {
    static constexpr bool HALVES = true;
    __device__ static float scale_of(u32 code) {
        u32 exponent = code >> 3 & 15, mantissa = code & 7;
        float normal = __uint_as_float((exponent + 119) << 23 | mantissa << 20);
        float value = exponent == 0 ? float(mantissa) * (1.0f / 1024.0f) : normal;
        return code == 0x7f ? 0.0f : value;
    }
    template <int S, class G>
    __device__ static void scales(const G &g, int, float (&scale)[2], float (&)[2]) {
        scale[0] = scale_of(g.template byte<32 + 2 * S>()), scale[1] = scale_of(g.template byte<33 + 2 * S>());
    }
};

// A word of signs has that of value 2 p at bit 15 - p, of value 2 p + 1 at bit 31 - p. Where each eighth sign makes the number of the
// others even, these four bits (28, 24, 20 and 16) mean something else.
__device__ __forceinline__ u32 eighth_signs(u32 word) {
    u32 odd = (word ^ (word >> 16 & 0xeeeeu)) & 0xffffu;
    odd ^= odd >> 2;
    odd ^= odd >> 1;
    return (word & 0xeeeeffffu) | (odd & 0x1111u) << 16;
}

// The four bits beside the signs, as a number: that at bit 28 is the lowest.
__device__ __forceinline__ u32 beside_signs(u32 word) {
    // Bits 12, 8, 4 and 0 of the upper half meet at bits 12, 13, 14 and 15.
    return (word >> 16 & 0x1111u) * 0x8421u >> 12 & 15;
}

// Word I % 2 of entries of eight values.
template <int I>
__device__ __forceinline__ u32 entry_of_8(const u32 *book, u32 entry) {
    return book[2 * entry + I % 2];
}

// IQ2_XXS.
template <> struct Type<16> : Plain<16, 2> {
    static constexpr bool SIGNS = true;
    static constexpr int TABLE = 2 * 256;
    template <int S, class G>
    __device__ static void scales(const G &g, int, float (&scale)[2], float (&)[2]) {
        scale[0] = __fmul_rn(half_to_float((u16)g.row_words[0]), 0.5f + small(beside_signs(g.template word<8 + 4 * S>()))) * 0.25f;
    }
    template <int S, class G>
    __device__ static u32 signs(const G &g) {
        return eighth_signs(g.template word<8 + 4 * S>());
    }
    template <int S, int I, class G>
    __device__ static u32 word(const G &g, const u32 *book) {
        return entry_of_8<I>(book, g.template byte<4 * S + I / 2>());
    }
};

// The two scales of a sub-block of IQ2_XS and IQ2_S.
__device__ __forceinline__ void half_byte_scales(float d, u32 scales, float (&scale)[2]) {
    scale[0] = __fmul_rn(d, 0.5f + small(scales & 15)) * 0.25f;
    scale[1] = __fmul_rn(d, 0.5f + small(scales >> 4)) * 0.25f;
}

// IQ2_XS.
template <> struct Type<17> : Plain<18, 2> {
    static constexpr bool HALVES = true;
    static constexpr bool SIGNS = true;
    static constexpr int TABLE = 2 * 512;
    template <int S, class G>
    __device__ static void scales(const G &g, int, float (&scale)[2], float (&)[2]) {
        half_byte_scales(half_to_float((u16)g.row_words[0]), g.template byte<16 + S>(), scale);
    }
    template <int S, class G>
    __device__ static u32 signs(const G &g) {
        return eighth_signs(g.template word<8 + 4 * S>());
    }
    // The ninth bit of an entry stands beside the signs.
    template <int S, int I, class G>
    __device__ static u32 word(const G &g, const u32 *book) {
        return entry_of_8<I>(book, g.template byte<4 * S + I / 2>() | (g.template word<8 + 4 * S>() >> (20 - 4 * (I / 2)) & 256));
    }
};

// IQ2_S.
template <> struct Type<22> : Plain<20, 2> {
    static constexpr bool HALVES = true;
    static constexpr bool SIGNS = true;
    static constexpr int TABLE = 2 * 1024;
    template <int S, class G>
    __device__ static void scales(const G &g, int, float (&scale)[2], float (&)[2]) {
        half_byte_scales(half_to_float((u16)g.row_words[0]), g.template byte<18 + S>(), scale);
    }
    template <int S, class G>
    __device__ static u32 signs(const G &g) {
        return g.template word<8 + 4 * S>();
    }
    template <int S, int I, class G>
    __device__ static u32 word(const G &g, const u32 *book) {
        return entry_of_8<I>(book, g.template byte<4 * S + I / 2>() | (g.template byte<16 + S>() << (8 - I / 2 * 2) & 768));
    }
};

// IQ3_XXS.
template <> struct Type<18> : Plain<24, 2> {
    static constexpr bool SIGNS = true;
    static constexpr int TABLE = 256;
    template <int S, class G>
    __device__ static void scales(const G &g, int, float (&scale)[2], float (&)[2]) {
        scale[0] = __fmul_rn(half_to_float((u16)g.row_words[0]), 0.5f + small(beside_signs(g.template word<16 + 4 * S>()))) * 0.5f;
    }
    template <int S, class G>
    __device__ static u32 signs(const G &g) {
        return eighth_signs(g.template word<16 + 4 * S>());
    }
    template <int S, int I, class G>
    __device__ static u32 word(const G &g, const u32 *book) {
        return book[g.template byte<8 * S + I>()];
    }
};

// IQ3_S.
template <> struct Type<21> : Plain<27, 2> {
    static constexpr bool SIGNS = true;
    static constexpr int TABLE = 512;
    template <int S, class G>
    __device__ static void scales(const G &g, int, float (&scale)[2], float (&)[2]) {
        const u32 half_byte = g.template byte<26>() >> (4 * S) & 15;
        scale[0] = __fmul_rn(half_to_float((u16)g.row_words[0]), small(2 * half_byte + 1));
    }
    template <int S, class G>
    __device__ static u32 signs(const G &g) {
        return g.template word<16 + 4 * S>();
    }
    template <int S, int I, class G>
    __device__ static u32 word(const G &g, const u32 *book) {
        return book[g.template byte<8 * S + I>() | (g.template byte<24 + S>() << (8 - I) & 256)];
    }
};

// The book of the IQ1 types holds g of {-1, 0, 1} as 8 g + 16; a group of eight adds or subtracts 1 (delta is an eighth),
// so that code - 16 is eight times what the scale multiplies.
template <int I>
__device__ __forceinline__ u32 shifted_entry(const u32 *book, u32 entry, u32 negative) {
    return entry_of_8<I>(book, entry) + (negative ? 0u - 0x01010101u : 0x01010101u);
}

// IQ1_S.
template <> struct Type<19> : Plain<12, 2> {
    static constexpr int OFFSET = 16;
    static constexpr int TABLE = 2 * 2048;
    template <int S, class G>
    __device__ static void scales(const G &g, int, float (&scale)[2], float (&)[2]) {
        const u32 high = g.template two_bytes<8 + 2 * S>();
        scale[0] = __fmul_rn(half_to_float((u16)g.row_words[0]), small(2 * (high >> 12 & 7) + 1)) * 0.125f;
    }
    template <int S, int I, class G>
    __device__ static u32 word(const G &g, const u32 *book) {
        const u32 high = g.template two_bytes<8 + 2 * S>();
        return shifted_entry<I>(book, g.template byte<4 * S + I / 2>() | (high >> (3 * (I / 2)) & 7) << 8, high >> 15);
    }
};

// IQ1_M.
template <> struct Type<29> : Plain<12, 8> {
    static constexpr bool HALVES = true;
    static constexpr int OFFSET = 16;
    static constexpr int TABLE = 2 * 2048;
    template <int S, class G>
    __device__ static void scales(const G &g, int t, float (&scale)[2], float (&)[2]) {
        const u32 first = g.row_words[0], last = g.row_words[1];
        const u32 bits = first >> 12 & 15 | first >> 24 & 240 | last >> 4 & 0xf00 | last >> 16 & 0xf000;
        const u32 scales = (t < 2 ? first : last) >> (t % 2 * 16 + 6 * S);
        const float d = half_to_float((u16)bits);
        scale[0] = __fmul_rn(d, small(2 * (scales & 7) + 1)) * 0.125f;
        scale[1] = __fmul_rn(d, small(2 * (scales >> 3 & 7) + 1)) * 0.125f;
    }
    template <int S, int I, class G>
    __device__ static u32 word(const G &g, const u32 *book) {
        const u32 high = g.template two_bytes<8 + 2 * S>() >> (4 * (I / 2));
        return shifted_entry<I>(book, g.template byte<4 * S + I / 2>() | (high & 7) << 8, high & 8);
    }
};

}  // namespace blocks

// The type of a unit's weights.
using Weight = blocks::Type<WEIGHT>;
using Share = Weight::Share;

// Bytes of a cell, eight rows of a group, with so many lanes a row: four, or fewer in the last group of a row.
__host__ __device__ constexpr int cell_bytes(int lanes) { return blocks::STRIP * (Weight::OWN * lanes + Weight::ROW); }

constexpr int CELL = cell_bytes(blocks::LANES);

// Where a row is in a strip.
struct RowLane {
    // Row of the strip and lane of it; lanes that the group has.
    int r, t, lanes;
};

// Brings PLANE bytes (a power of two) of `index` to where they belong.
template <int PLANE>
__device__ __forceinline__ void load_plane(const u8 *plane, int index, int offset, u32 *to) {
    if constexpr (PLANE == 16) {
        const uint4 four = ((const uint4 *)plane)[index];
        to[offset / 4] = four.x, to[offset / 4 + 1] = four.y, to[offset / 4 + 2] = four.z, to[offset / 4 + 3] = four.w;
    } else if constexpr (PLANE == 8) {
        const uint2 two = ((const uint2 *)plane)[index];
        to[offset / 4] = two.x, to[offset / 4 + 1] = two.y;
    } else if constexpr (PLANE == 4) {
        to[offset / 4] = ((const u32 *)plane)[index];
    } else if constexpr (PLANE == 2) {
        to[offset / 4] = ((const u16 *)plane)[index];
    } else {
        const u32 byte = plane[index];
        to[offset / 4] = offset % 4 == 0 ? byte : to[offset / 4] | byte << 8 * (offset % 4);
    }
}

// All planes of BYTES bytes an index, the largest first: of sizes 16, as often as they fit, then 8, 4, 2 and 1.
template <int BYTES, int PLANE, int DONE>
__device__ __forceinline__ void load_planes(const u8 *planes, int count, int index, u32 *to) {
    if constexpr (DONE < BYTES) {
        if constexpr (BYTES - DONE >= PLANE) {
            load_plane<PLANE>(planes + DONE * count, index, DONE, to);
            load_planes<BYTES, PLANE, DONE + PLANE>(planes, count, index, to);
        } else {
            load_planes<BYTES, PLANE / 2, DONE>(planes, count, index, to);
        }
    }
}

// What a lane has of a row in a cell; zeros where the group has no such lane.
template <bool WHOLE>
__device__ __forceinline__ Share load_share(const u8 *cell, const RowLane &at) {
    Share share;
    if (!WHOLE && at.t >= at.lanes) {
#pragma unroll
        for (u32 &word : share.own_words) word = 0;
#pragma unroll
        for (u32 &word : share.row_words) word = 0;
        return share;
    }
    const int lanes = WHOLE ? blocks::LANES : at.lanes, count = blocks::STRIP * lanes;
    load_planes<Weight::OWN, 16, 0>(cell, count, at.r * lanes + at.t, share.own_words);
    load_planes<Weight::ROW, 16, 0>(cell + count * Weight::OWN, blocks::STRIP, at.r, share.row_words);
    return share;
}
