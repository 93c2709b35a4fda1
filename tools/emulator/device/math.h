// Floating point. Operations with a rounding in their name are never fused with their neighbours; the others are, as
// NVRTC does by default.
#pragma once

// Keeps the compiler from looking through a value.
static inline __attribute__((always_inline)) float emulator_opaque(float x) {
    asm("" : "+x"(x));
    return x;
}
static inline __attribute__((always_inline)) double emulator_opaque(double x) {
    asm("" : "+x"(x));
    return x;
}

#define EMULATOR_ROUNDED(type, add, sub, mul, div, fma_, root, inverse, fma_builtin, root_builtin)                     \
    static inline type add(type a, type b) { return emulator_opaque(a + b); }                                          \
    static inline type sub(type a, type b) { return emulator_opaque(a - b); }                                          \
    static inline type mul(type a, type b) { return emulator_opaque(a * b); }                                          \
    static inline type div(type a, type b) { return emulator_opaque(a / b); }                                          \
    static inline type fma_(type a, type b, type c) { return emulator_opaque(fma_builtin(a, b, c)); }                  \
    static inline type root(type a) { return emulator_opaque(root_builtin(a)); }                                       \
    static inline type inverse(type a) { return emulator_opaque(type(1) / a); }

EMULATOR_ROUNDED(
    float, __fadd_rn, __fsub_rn, __fmul_rn, __fdiv_rn, __fmaf_rn, __fsqrt_rn, __frcp_rn, __builtin_fmaf, __builtin_sqrtf
)
EMULATOR_ROUNDED(
    double, __dadd_rn, __dsub_rn, __dmul_rn, __ddiv_rn, __fma_rn, __dsqrt_rn, __drcp_rn, __builtin_fma, __builtin_sqrt
)

#define EMULATOR_ONE(name)                                                                                             \
    static inline float name##f(float x) { return __builtin_##name##f(x); }                                            \
    static inline double name(double x) { return __builtin_##name(x); }                                                \
    static inline float name(float x) { return __builtin_##name##f(x); }
EMULATOR_ONE(exp)
EMULATOR_ONE(exp2)
EMULATOR_ONE(expm1)
EMULATOR_ONE(log)
EMULATOR_ONE(log2)
EMULATOR_ONE(log10)
EMULATOR_ONE(log1p)
EMULATOR_ONE(sin)
EMULATOR_ONE(cos)
EMULATOR_ONE(tan)
EMULATOR_ONE(tanh)
EMULATOR_ONE(erf)
EMULATOR_ONE(sqrt)
EMULATOR_ONE(cbrt)
EMULATOR_ONE(floor)
EMULATOR_ONE(ceil)
EMULATOR_ONE(trunc)
EMULATOR_ONE(round)
EMULATOR_ONE(rint)
EMULATOR_ONE(fabs)

#define EMULATOR_TWO(name)                                                                                             \
    static inline float name##f(float x, float y) { return __builtin_##name##f(x, y); }                                \
    static inline double name(double x, double y) { return __builtin_##name(x, y); }                                   \
    static inline float name(float x, float y) { return __builtin_##name##f(x, y); }
EMULATOR_TWO(fmin)
EMULATOR_TWO(fmax)
EMULATOR_TWO(fmod)
EMULATOR_TWO(pow)
EMULATOR_TWO(copysign)
EMULATOR_TWO(ldexp)

static inline float fmaf(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
static inline double fma(double a, double b, double c) { return __builtin_fma(a, b, c); }
static inline float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
static inline float rsqrtf(float x) { return 1.0f / __builtin_sqrtf(x); }
static inline double rsqrt(double x) { return 1.0 / __builtin_sqrt(x); }
static inline void sincosf(float x, float *sine, float *cosine) { *sine = sinf(x), *cosine = cosf(x); }
static inline void sincos(double x, double *sine, double *cosine) { *sine = sin(x), *cosine = cos(x); }

// What a card computes less exactly is exact here: a tolerance that needs the difference is too narrow there.
static inline float __expf(float x) { return expf(x); }
static inline float __exp2f(float x) { return exp2f(x); }
static inline float __logf(float x) { return logf(x); }
static inline float __log2f(float x) { return log2f(x); }
static inline float __sinf(float x) { return sinf(x); }
static inline float __cosf(float x) { return cosf(x); }
static inline float __fdividef(float a, float b) { return a / b; }
static inline float __frsqrt_rn(float x) { return rsqrtf(x); }
static inline float __saturatef(float x) { return x > 0.0f ? x < 1.0f ? x : 1.0f : 0.0f; }

template <class T> static inline bool isnan(T x) { return __builtin_isnan(x); }
template <class T> static inline bool isinf(T x) { return __builtin_isinf(x); }
template <class T> static inline bool isfinite(T x) { return __builtin_isfinite(x); }
template <class T> static inline bool signbit(T x) { return __builtin_signbit(x); }

#define EMULATOR_LEAST(type)                                                                                           \
    static inline type min(type a, type b) { return b < a ? b : a; }                                                   \
    static inline type max(type a, type b) { return a < b ? b : a; }
EMULATOR_LEAST(int)
EMULATOR_LEAST(unsigned)
EMULATOR_LEAST(long)
EMULATOR_LEAST(unsigned long)
EMULATOR_LEAST(long long)
EMULATOR_LEAST(unsigned long long)
static inline unsigned min(int a, unsigned b) { return min(unsigned(a), b); }
static inline unsigned min(unsigned a, int b) { return min(a, unsigned(b)); }
static inline unsigned max(int a, unsigned b) { return max(unsigned(a), b); }
static inline unsigned max(unsigned a, int b) { return max(a, unsigned(b)); }
static inline float min(float a, float b) { return fminf(a, b); }
static inline float max(float a, float b) { return fmaxf(a, b); }
static inline double min(double a, double b) { return fmin(a, b); }
static inline double max(double a, double b) { return fmax(a, b); }
static inline int abs(int x) { return x < 0 ? -x : x; }
static inline long long llabs(long long x) { return x < 0 ? -x : x; }
