// The twin of gruff's `ptx.cuh`: the same functions, computed lane by lane. Fragments are laid out as the header there says.
#pragma once

namespace ptx {

static inline float half_to_float(u16 bits) {
    typedef short Halves __attribute__((vector_size(16)));
    const Halves halves = {short(bits)};
    return __builtin_ia32_vcvtph2ps(halves)[0];
}

static inline u16 float_to_half(float value) {
    typedef float Floats __attribute__((vector_size(16)));
    if (value != value) return 0x7fff;
    const Floats floats = {value};
    return u16(__builtin_ia32_vcvtps2ph(floats, 0)[0]);
}

static inline u32 floats_to_half2(float low, float high) { return u32(float_to_half(high)) << 16 | float_to_half(low); }

static inline u32 emulator_to_bf16(float value) {
    const u32 bits = __float_as_uint(value);
    return value != value ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

static inline u32 floats_to_bf162(float low, float high) { return emulator_to_bf16(high) << 16 | emulator_to_bf16(low); }

// The product of two bfloat16 has 16 bits, and a sum that needs more than the 53 of a double lies far from a tie.
static inline u32 emulator_fma_bf16(u32 a, u32 b, u32 c) {
    const double exact = double(__uint_as_float(a << 16)) * double(__uint_as_float(b << 16)) + double(__uint_as_float(c << 16));
    float near = float(exact);
    // Rounded to odd, so that rounding once more is rounding once.
    if (double(near) != exact && near == near && (__float_as_uint(near) & 1) == 0) {
        const bool away = fabs(double(near)) > fabs(exact);
        near = __uint_as_float(__float_as_uint(near) + (away ? -1u : 1u));
    }
    return emulator_to_bf16(near);
}

static inline u32 fma_bf162(u32 a, u32 b, u32 c) {
    return emulator_fma_bf16(a & 65535, b & 65535, c & 65535) | emulator_fma_bf16(a >> 16, b >> 16, c >> 16) << 16;
}

static inline u32 float_to_tf32(float value) {
    const u32 bits = __float_as_uint(value);
    if ((bits & 0x7f800000) == 0x7f800000) return value != value ? 0x7fffffff : bits;
    return (bits + 0x1000) & 0xffffe000;
}

static inline float exp2_approx(float x) {
    const float value = exp2f(x);
    return fabsf(value) < 1.17549435e-38f ? 0.0f : value;
}

// What a lane brings to a product, and takes from it in place of c.
template <class C, int words_a, int words_b> struct Fragments {
    C c[4];
    u32 a[words_a], b[words_b];
};

// Products of a 16 x (4 words_b words) matrix and one of 8 columns. `dot` multiplies what a word of a and one of b hold, in the
// type that sums are kept in until a row is complete.
template <class C, class Sum, int words_a, int words_b, class Dot> static inline void multiply(emulator::Slot *slots, Dot dot) {
    Fragments<C, words_a, words_b> all[32];
    for (int lane = 0; lane < 32; lane++) __builtin_memcpy(&all[lane], slots + lane, sizeof *all);
    for (int lane = 0; lane < 32; lane++) {
        const int g = lane / 4, t = lane % 4;
        for (int i = 0; i < 4; i++) {
            const int half = i / 2, column = 2 * t + i % 2;
            Sum sum = Sum(all[lane].c[i]);
            for (int k = 0; k < words_b; k++)
                for (int j = 0; j < 4; j++) sum += dot(all[4 * g + j].a[2 * k + half], all[4 * column + j].b[k]);
            const C c = C(sum);
            __builtin_memcpy(slots[lane].bytes + i * sizeof(C), &c, sizeof c);
        }
    }
}

static inline u32 emulator_dot_s8(u32 a, u32 b) { return u32(__dp4a(int(a), int(b), 0)); }
static inline double emulator_dot_f16(u32 a, u32 b) {
    return double(half_to_float(u16(a))) * double(half_to_float(u16(b))) +
           double(half_to_float(u16(a >> 16))) * double(half_to_float(u16(b >> 16)));
}
static inline double emulator_dot_bf16(u32 a, u32 b) {
    return double(__uint_as_float(a << 16)) * double(__uint_as_float(b << 16)) +
           double(__uint_as_float(a & 0xffff0000)) * double(__uint_as_float(b & 0xffff0000));
}
static inline double emulator_dot_tf32(u32 a, u32 b) {
    return double(__uint_as_float(a & 0xffffe000)) * double(__uint_as_float(b & 0xffffe000));
}

static inline void emulator_s8_k32(emulator::Slot *slots) { multiply<int, u32, 4, 2>(slots, emulator_dot_s8); }
static inline void emulator_s8_k16(emulator::Slot *slots) { multiply<int, u32, 2, 1>(slots, emulator_dot_s8); }
static inline void emulator_f16_k16(emulator::Slot *slots) { multiply<float, double, 4, 2>(slots, emulator_dot_f16); }
static inline void emulator_bf16_k16(emulator::Slot *slots) { multiply<float, double, 4, 2>(slots, emulator_dot_bf16); }
static inline void emulator_tf32_k8(emulator::Slot *slots) { multiply<float, double, 4, 2>(slots, emulator_dot_tf32); }

template <int words_a, int words_b, class C>
static inline void product(C (&c)[4], const u32 *a, const u32 *b, emulator::Combine combine) {
    Fragments<C, words_a, words_b> mine;
    __builtin_memcpy(mine.c, c, sizeof c);
    __builtin_memcpy(mine.a, a, sizeof mine.a);
    __builtin_memcpy(mine.b, b, sizeof mine.b);
    const emulator::Slot *slots = emulator_runtime->meet(FULL_WARP, emulator::PRODUCT, &mine, sizeof mine, combine);
    __builtin_memcpy(c, slots + threadIdx.lane, sizeof c);
}

static inline void mma_s8_k32(int (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) { product<4, 2>(c, a, b, emulator_s8_k32); }
static inline void mma_s8_k16(int (&c)[4], u32 a0, u32 a1, u32 b) {
    const u32 a[2] = {a0, a1};
    product<2, 1>(c, a, &b, emulator_s8_k16);
}
static inline void mma_f16_k16(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    product<4, 2>(c, a, b, emulator_f16_k16);
}
static inline void mma_bf16_k16(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    product<4, 2>(c, a, b, emulator_bf16_k16);
}
static inline void mma_tf32_k8(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    product<4, 2>(c, a, b, emulator_tf32_k8);
}

// Lane l has named row l % 8 of tile l / 8.
template <int tiles, bool turned> static inline void emulator_load(emulator::Slot *slots) {
    const u8 *rows[32];
    for (int lane = 0; lane < 32; lane++) __builtin_memcpy(&rows[lane], slots + lane, sizeof *rows);
    for (int lane = 0; lane < 8 * tiles; lane++)
        if (size_t(rows[lane]) % 16 != 0) emulator_runtime->fault("ldmatrix: a row does not begin at a multiple of 16 bytes");
    for (int lane = 0; lane < 32; lane++) {
        for (int tile = 0; tile < tiles; tile++) {
            const int row = turned ? 2 * (lane % 4) : lane / 4, column = turned ? lane / 4 : 2 * (lane % 4);
            u16 values[2];
            for (int i = 0; i < 2; i++)
                __builtin_memcpy(values + i, rows[8 * tile + row + (turned ? i : 0)] + 2 * (column + (turned ? 0 : i)), 2);
            __builtin_memcpy(slots[lane].bytes + 4 * tile, values, 4);
        }
    }
}

template <int tiles, bool turned> static inline void load(u32 *to, const void *from) {
    const emulator::Slot *slots =
        emulator_runtime->meet(FULL_WARP, emulator::LOAD, &from, sizeof from, emulator_load<tiles, turned>);
    __builtin_memcpy(to, slots + threadIdx.lane, 4 * tiles);
}

static inline void load_matrices(u32 (&to)[4], const void *from) { load<4, false>(to, from); }
static inline void load_matrices(u32 (&to)[2], const void *from) { load<2, false>(to, from); }
static inline void load_matrices_turned(u32 (&to)[4], const void *from) { load<4, true>(to, from); }
static inline void load_matrices_turned(u32 (&to)[2], const void *from) { load<2, true>(to, from); }

static inline void copy_16(void *shared, const void *global, int bytes) { emulator_runtime->copy(shared, global, 16, bytes); }
static inline void copy_16(void *shared, const void *global) { emulator_runtime->copy(shared, global, 16, 16); }
typedef u64 Shared;
static inline Shared shared_at(const void *shared) { return u64(size_t(shared)); }
static inline void copy_16_to(Shared to, const void *global) { copy_16((void *)to, global); }
static inline u32 permute(u32 a, u32 b, u32 selectors) { return __byte_perm(a, b, selectors); }
static inline const u8 *opaque(const u8 *address) { return address; }
static inline void bring_near(const void *global, u32 bytes) {}
static inline void copies_made() { emulator_runtime->copies_made(); }
template <int N> static inline void copies_wait() { emulator_runtime->copies_wait(N); }

// The instructions of four warps at once are computed by each lane for itself: what they read was there before the barrier in
// front of them.
static inline void wgmma_begin() {}
static inline void wgmma_made() {}
template <int N> static inline void wgmma_wait() {}
static inline void publish_shared() {}

static inline u64 matrix_at(const void *from, int along, int across) {
    return u64(size_t(from)) | u64(across >> 4) << 48 | u64(along >> 4) << 60;
}

static inline u64 next_step(u64 matrix, int bytes) { return matrix + bytes; }

// The 16 values of a row.
static inline void emulator_row(u64 matrix, int row, u32 (&words)[8]) {
    const u8 *from = (const u8 *)(matrix & 0xffffffffffffull) + (matrix >> 48 & 4095) * 16 * (row / 8) + row % 8 * 16;
    __builtin_memcpy(words, from, 16);
    __builtin_memcpy(words + 4, from + (matrix >> 60) * 16, 16);
}

template <int values> static inline void emulator_wgmma(float (&c)[values], u64 a, u64 b, bool add) {
    const int warp = threadIdx.x / 32 % 4, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    u32 rows[2][8], column[8];
    for (int half = 0; half < 2; half++) emulator_row(a, 16 * warp + 8 * half + g, rows[half]);
    for (int i = 0; i < values / 4; i++) {
        for (int odd = 0; odd < 2; odd++) {
            emulator_row(b, 8 * i + 2 * t + odd, column);
            for (int half = 0; half < 2; half++) {
                float &to = c[4 * i + 2 * half + odd];
                double sum = add ? double(to) : 0.0;
                for (int k = 0; k < 8; k++) sum += emulator_dot_bf16(rows[half][k], column[k]);
                to = float(sum);
            }
        }
    }
}

static inline void wgmma_bf16(float (&c)[64], u64 a, u64 b, bool add) { emulator_wgmma(c, a, b, add); }
static inline void wgmma_bf16(float (&c)[32], u64 a, u64 b, bool add) { emulator_wgmma(c, a, b, add); }

// Kernels run one after the other, but what stands in front of the wait may be tried before.
static inline void wait_for_kernel_before() { emulator_runtime->wait_for_kernel_before(); }
static inline void let_next_kernel_begin() {}

// By the processor's counter, at some gigahertz.
static inline u64 nanoseconds() { return __builtin_ia32_rdtsc() / 3; }

} // namespace ptx
