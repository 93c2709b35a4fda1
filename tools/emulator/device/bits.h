// Integers and bits.
#pragma once

template <class To, class From> static inline To emulator_bits(From from) {
    static_assert(sizeof(To) == sizeof(From), "the same bits");
    To to;
    __builtin_memcpy(&to, &from, sizeof to);
    return to;
}

static inline int __float_as_int(float x) { return emulator_bits<int>(x); }
static inline unsigned __float_as_uint(float x) { return emulator_bits<unsigned>(x); }
static inline float __int_as_float(int x) { return emulator_bits<float>(x); }
static inline float __uint_as_float(unsigned x) { return emulator_bits<float>(x); }
static inline long long __double_as_longlong(double x) { return emulator_bits<long long>(x); }
static inline double __longlong_as_double(long long x) { return emulator_bits<double>(x); }

// Conversions saturate, and NaN is 0.
static inline int emulator_to_int(float x) {
    if (x != x) return 0;
    return x >= 2147483648.0f ? 2147483647 : x < -2147483648.0f ? -2147483647 - 1 : int(x);
}
static inline unsigned emulator_to_uint(float x) {
    return !(x > 0.0f) ? 0u : x >= 4294967296.0f ? 0xffffffffu : unsigned(x);
}
static inline int __float2int_rn(float x) { return emulator_to_int(__builtin_rintf(x)); }
static inline int __float2int_rz(float x) { return emulator_to_int(__builtin_truncf(x)); }
static inline int __float2int_rd(float x) { return emulator_to_int(__builtin_floorf(x)); }
static inline int __float2int_ru(float x) { return emulator_to_int(__builtin_ceilf(x)); }
static inline unsigned __float2uint_rn(float x) { return emulator_to_uint(__builtin_rintf(x)); }
static inline unsigned __float2uint_rz(float x) { return emulator_to_uint(__builtin_truncf(x)); }
static inline float __int2float_rn(int x) { return float(x); }
static inline float __uint2float_rn(unsigned x) { return float(x); }

static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
static inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(unsigned(x)); }
static inline int __clzll(long long x) { return x == 0 ? 64 : __builtin_clzll((unsigned long long)x); }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __ffsll(long long x) { return __builtin_ffsll(x); }
static inline unsigned __brev(unsigned x) {
    unsigned y = 0;
    for (int i = 0; i < 32; i++) y = y << 1 | (x >> i & 1);
    return y;
}

static inline int __mulhi(int a, int b) { return int((long long)a * b >> 32); }
static inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned((unsigned long long)a * b >> 32); }
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}

// Shifts of a pair of words by s mod 32.
static inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned s) {
    return unsigned(((unsigned long long)high << 32 | low) >> (s & 31));
}
static inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned s) {
    return unsigned(((unsigned long long)high << 32 | low) << (s & 31) >> 32);
}

// Four of the eight bytes of b:a; a selector with its fourth bit set repeats the byte's sign.
static inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selectors) {
    const unsigned long long both = (unsigned long long)b << 32 | a;
    unsigned result = 0;
    for (int i = 0; i < 4; i++) {
        const unsigned selector = selectors >> (4 * i);
        unsigned byte = unsigned(both >> (8 * (selector & 7))) & 255;
        if (selector & 8) byte = byte & 128 ? 255 : 0;
        result |= byte << (8 * i);
    }
    return result;
}

// Sums of products of four bytes, signed or not, and c.
static inline int __dp4a(int a, int b, int c) {
    for (int i = 0; i < 4; i++) c += int((signed char)(a >> (8 * i))) * int((signed char)(b >> (8 * i)));
    return c;
}
static inline unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
    for (int i = 0; i < 4; i++) c += (a >> (8 * i) & 255) * (b >> (8 * i) & 255);
    return c;
}
