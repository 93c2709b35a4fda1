// The twins of PTX instructions, against plain loops over whole matrices.
#include <cmath>

#include "cuda.h"

static const char *SOURCE = R"(
// a [16][16] and b [16][8] of halves or bfloat16, as words; out [16][8].
template <bool half> static __device__ void product(const float *a, const float *b, float *out) {
    __shared__ __align__(16) u32 rows[16][8], columns[16][4];
    const int lane = threadIdx.x;
    for (int i = lane; i < 128; i += 32)
        rows[i / 8][i % 8] = half ? ptx::floats_to_half2(a[2 * i], a[2 * i + 1]) : ptx::floats_to_bf162(a[2 * i], a[2 * i + 1]);
    for (int i = lane; i < 64; i += 32)
        columns[i / 4][i % 4] = half ? ptx::floats_to_half2(b[2 * i], b[2 * i + 1]) : ptx::floats_to_bf162(b[2 * i], b[2 * i + 1]);
    __syncwarp();
    u32 left[4], right[2];
    ptx::load_matrices(left, &rows[lane % 16][lane / 16 * 4]);
    ptx::load_matrices_turned(right, &columns[lane % 16][0]);
    float c[4] = {1.0f, 1.0f, 1.0f, 1.0f};
    if (half) ptx::mma_f16_k16(c, left, right);
    else ptx::mma_bf16_k16(c, left, right);
    for (int i = 0; i < 4; i++) out[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = c[i];
}
extern "C" __global__ void halves(const float *a, const float *b, float *out) { product<true>(a, b, out); }
extern "C" __global__ void bfloats(const float *a, const float *b, float *out) { product<false>(a, b, out); }
// The first eight columns of a and rows of b.
extern "C" __global__ void tf32(const float *a, const float *b, float *out) {
    const int g = threadIdx.x / 4, t = threadIdx.x % 4;
    const float of_a[4] = {a[g * 16 + t], a[(g + 8) * 16 + t], a[g * 16 + t + 4], a[(g + 8) * 16 + t + 4]};
    u32 left[4], right[2] = {ptx::float_to_tf32(b[t * 8 + g]), ptx::float_to_tf32(b[(t + 4) * 8 + g])};
    for (int i = 0; i < 4; i++) left[i] = ptx::float_to_tf32(of_a[i]);
    float c[4] = {};
    ptx::mma_tf32_k8(c, left, right);
    for (int i = 0; i < 4; i++) out[(g + i / 2 * 8) * 8 + t * 2 + i % 2] = c[i];
}
// a [16][32] and b [8][32] of bytes.
extern "C" __global__ void bytes(const u32 *a, const u32 *b, int *out) {
    __shared__ __align__(16) u32 rows[16][8], columns[8][8];
    const int lane = threadIdx.x;
    for (int i = lane; i < 128; i += 32) rows[i / 8][i % 8] = a[i];
    for (int i = lane; i < 64; i += 32) columns[i / 8][i % 8] = b[i];
    __syncwarp();
    u32 left[4], right[2];
    ptx::load_matrices(left, &rows[lane % 16][lane / 16 * 4]);
    ptx::load_matrices(right, &columns[lane % 8][lane / 8 % 2 * 4]);
    int whole[4] = {7, 7, 7, 7}, halves[4] = {7, 7, 7, 7};
    ptx::mma_s8_k32(whole, left, right);
    ptx::mma_s8_k16(halves, left[0], left[1], right[0]);
    ptx::mma_s8_k16(halves, left[2], left[3], right[1]);
    for (int i = 0; i < 4; i++) {
        const int at = (lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2;
        out[at] = whole[i], out[128 + at] = halves[i];
    }
}
extern "C" __global__ void conversions(const float *x, u32 *out) {
    out[0] = ptx::floats_to_half2(x[0], x[1]), out[1] = ptx::floats_to_half2(x[2], x[3]);
    out[2] = ptx::floats_to_bf162(x[0], x[1]), out[3] = ptx::float_to_tf32(x[0]);
    out[4] = __float_as_uint(ptx::half_to_float(0x3555)), out[5] = __float_as_uint(ptx::exp2_approx(x[4]));
    out[6] = ptx::floats_to_half2(x[5], x[6]);
}
)";

static std::vector<float> some(size_t count, unsigned seed) {
    std::vector<float> all;
    for (size_t i = 0; i < count; i++) {
        seed = seed * 1664525 + 1013904223;
        // Few bits, so that all three types hold them.
        all.push_back(float(int(seed >> 24) - 128) / 64);
    }
    return all;
}

static void products(const char *kernel, int depth, float beyond) {
    const Card card(SOURCE);
    const std::vector<float> a = some(256, 1), b = some(128, 2);
    const Values<float> left(a), right(b), out(128);
    OK(card.launch(kernel, 32, 0, left.at, right.at, out.at));
    const std::vector<float> found = out.get(card);
    for (int row = 0; row < 16; row++)
        for (int column = 0; column < 8; column++) {
            double sum = double(beyond);
            for (int k = 0; k < depth; k++) sum += double(a[size_t(row * 16 + k)]) * double(b[size_t(k * 8 + column)]);
            CHECK(found[size_t(row * 8 + column)] == float(sum));
        }
}

TEST(halves_are_multiplied) { products("halves", 16, 1.0f); }
TEST(bfloats_are_multiplied) { products("bfloats", 16, 1.0f); }
TEST(tf32_is_multiplied) { products("tf32", 8, 0.0f); }

TEST(bytes_are_multiplied) {
    const Card card(SOURCE);
    std::vector<signed char> a, b;
    for (int i = 0; i < 512; i++) a.push_back(static_cast<signed char>(i * 37 + 11));
    for (int i = 0; i < 256; i++) b.push_back(static_cast<signed char>(i * 91 + 5));
    const Values<signed char> left(a), right(b);
    const Values<int> out(256);
    OK(card.launch("bytes", 32, 0, left.at, right.at, out.at));
    const std::vector<int> found = out.get(card);
    for (int row = 0; row < 16; row++)
        for (int column = 0; column < 8; column++) {
            int sum = 7;
            for (int k = 0; k < 32; k++) sum += a[size_t(row * 32 + k)] * b[size_t(column * 32 + k)];
            CHECK(found[size_t(row * 8 + column)] == sum && found[size_t(128 + row * 8 + column)] == sum);
        }
}

TEST(numbers_are_converted) {
    const Card card(SOURCE);
    // Halfway between two halves (to the even one), too large, too small, and no number.
    const Values<float> in(std::vector<float>{1.0f + 1.0f / 2048, -1.0f - 3.0f / 2048, 70000.0f, 6.1e-8f, -130.0f, NAN, 65520.0f});
    const Values<unsigned> out(7);
    OK(card.launch("conversions", 1, 0, in.at, out.at));
    const std::vector<unsigned> found = out.get(card);
    CHECK(found[0] == 0xbc023c00);
    CHECK(found[1] == 0x00017c00);
    CHECK(found[2] == 0xbf803f80);
    CHECK(found[3] == 0x3f802000);
    CHECK(found[4] == 0x3eaaa000);
    CHECK(found[5] == 0);
    CHECK(found[6] == 0x7c007fff);
}
