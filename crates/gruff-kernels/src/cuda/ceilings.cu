// What the card multiplies at most: sums that do not wait for each other, operands in registers.
#include "common.cuh"

// Sums of a warp, or thread, that are under way together.
#define CHAINS 8

#if __CUDA_ARCH__ >= 800

// Products of bfloat16 by tensor cores: 16 x 8 x 16 a warp, chain and round.
extern "C" __global__ void __launch_bounds__(256) products_bf16(float *out, int rounds) {
    float sums[CHAINS][4] = {};
    // Between 1 and 2, other bits in every lane.
    u32 a[4], b[2];
    for (int i = 0; i < 4; i++) a[i] = 0x3f803f81u + (threadIdx.x << 16) + i;
    for (int i = 0; i < 2; i++) b[i] = 0x3f813f80u + (threadIdx.x & 31) + (i << 18);
    for (int round = 0; round < rounds; round++) {
#pragma unroll
        for (int chain = 0; chain < CHAINS; chain++) ptx::mma_bf16_k16(sums[chain], a, b);
    }
    float sum = 0.0f;
    for (int chain = 0; chain < CHAINS; chain++) sum += sums[chain][0] + sums[chain][1] + sums[chain][2] + sums[chain][3];
    out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

// Products of bytes: 16 x 8 x 32 a warp, chain and round.
extern "C" __global__ void __launch_bounds__(256) products_int8(int *out, int rounds) {
    int sums[CHAINS][4] = {};
    u32 a[4], b[2];
    for (int i = 0; i < 4; i++) a[i] = 0x01fe0203u * (threadIdx.x + i + 1);
    for (int i = 0; i < 2; i++) b[i] = 0x02ff0103u * (threadIdx.x + i + 5);
    for (int round = 0; round < rounds; round++) {
#pragma unroll
        for (int chain = 0; chain < CHAINS; chain++) ptx::mma_s8_k32(sums[chain], a, b);
    }
    int sum = 0;
    for (int chain = 0; chain < CHAINS; chain++) sum ^= sums[chain][0] ^ sums[chain][1] ^ sums[chain][2] ^ sums[chain][3];
    out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

#endif

// Products of f32 by the ordinary units: one a thread, chain and round.
extern "C" __global__ void __launch_bounds__(256) products_f32(float *out, int rounds) {
    float sums[CHAINS];
    float factor = 1.0f / (float)(threadIdx.x + 2);
    for (int chain = 0; chain < CHAINS; chain++) sums[chain] = (float)chain;
    for (int round = 0; round < rounds; round++) {
#pragma unroll
        for (int chain = 0; chain < CHAINS; chain++) sums[chain] = fmaf(sums[chain], factor, factor);
    }
    float sum = 0.0f;
    for (int chain = 0; chain < CHAINS; chain++) sum += sums[chain];
    out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}
