// What all kernels share. NVRTC comes without CUDA's headers, so half precision is written here.

#pragma once

typedef unsigned char u8;
typedef signed char i8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

#define FULL_WARP 0xffffffffu
#define INFINITE __int_as_float(0x7f800000)

#include "ptx.cuh"

using ptx::float_to_half;
using ptx::half_to_float;

// The first statement of a kernel that may begin before the one in front of it has ended (`cuda/early.rs`). The next kernel may
// begin as well, from the start: it takes no block's place, since it begins when all blocks of this one have, and it gets
// nothing done before this one has ended, so that there is nothing to wait for. What a launch costs is then paid while the
// kernel before runs.
static __device__ __forceinline__ void in_turn() {
    ptx::let_next_kernel_begin();
    ptx::wait_for_kernel_before();
}

// The two halves of a word, the lower one first.
static __device__ __forceinline__ float2 half2_to_float2(u32 bits) {
    return make_float2(half_to_float((u16)bits), half_to_float((u16)(bits >> 16)));
}

// Four neighbouring values, at once where they lie on 16 bytes.
static __device__ __forceinline__ float4 load_four(const float *from) {
    if (((size_t)from & 15) == 0) return *(const float4 *)from;
    return make_float4(from[0], from[1], from[2], from[3]);
}

static __device__ __forceinline__ void store_four(float *to, float4 four) {
    if (((size_t)to & 15) == 0) *(float4 *)to = four;
    else to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
}

static __device__ __forceinline__ float bf16_to_float(u16 bits) { return __int_as_float((int)bits << 16); }

// Sum over a warp by a tree of fixed order; every lane has it.
static __device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
    for (int step = 16; step > 0; step >>= 1) value += __shfl_xor_sync(FULL_WARP, value, step);
    return value;
}

static __device__ __forceinline__ float warp_max(float value) {
#pragma unroll
    for (int step = 16; step > 0; step >>= 1) value = fmaxf(value, __shfl_xor_sync(FULL_WARP, value, step));
    return value;
}

// Sum over a block of up to 1024 threads by a tree that depends on the number of threads only; every thread has it.
// `scratch` holds 32 values and may be used again after the next barrier.
static __device__ __forceinline__ float block_sum(float value, float *scratch) {
    value = warp_sum(value);
    int warps = (int)blockDim.x + 31 >> 5;
    if (warps == 1) return value;
    __syncthreads();
    if ((threadIdx.x & 31) == 0) scratch[threadIdx.x >> 5] = value;
    __syncthreads();
    value = (int)(threadIdx.x & 31) < warps ? scratch[threadIdx.x & 31] : 0.0f;
    return warp_sum(value);
}

static __device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

static __device__ __forceinline__ float silu(float x) { return x / (1.0f + expf(-x)); }

// GELU by its tanh approximation.
static __device__ __forceinline__ float gelu_tanh(float x) {
    float inner = 0.7978845608028654f * (x + 0.044715f * x * x * x);
    return 0.5f * x * (1.0f + tanhf(inner));
}

// The gate of a gated linear unit, numbered as `Glu` in Rust.
static __device__ __forceinline__ float gate_value(int glu, float x) { return glu == 0 ? silu(x) : gelu_tanh(x); }

// Rows of a tensor of up to four dimensions: lengths and strides (in values) of the outer three, the inner dimension
// is contiguous. Rows are counted in order; there are less than 2^32.
struct Rows {
    i64 length1, length2;
    i64 stride0, stride1, stride2;
};

static __device__ __forceinline__ i64 row_offset(const Rows &rows, i64 row) {
    if (row == 0) return 0;
    u32 length1 = (u32)rows.length1, length2 = (u32)rows.length2;
    u32 outer = (u32)row / length2, inner = (u32)row - outer * length2;
    u32 first = outer / length1, second = outer - first * length1;
    return first * rows.stride0 + second * rows.stride1 + inner * rows.stride2;
}

// The same for value i of rows of `width` values.
static __device__ __forceinline__ i64 value_offset(const Rows &rows, i64 i, i64 width) {
    i64 row = i < width ? 0 : i / width;
    return row_offset(rows, row) + (i - row * width);
}
