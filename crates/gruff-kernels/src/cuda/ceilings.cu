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

#if __CUDA_ARCH_FEAT_SM90_ALL

// The same by four warps together, operands in shared memory: 64 x 128 x 16, chain after chain into the same sums.
extern "C" __global__ void __launch_bounds__(256) products_bf16_together(float *out, int rounds) {
    constexpr int rows = 64, columns = 128, depth = 16, piece = 8 * 8;
    __shared__ __align__(128) u16 shared[(rows + columns) * depth];
    // Between 1 and 2.
    for (int i = threadIdx.x; i < (rows + columns) * depth; i += blockDim.x) shared[i] = (u16)(0x3f80 + i % 127);
    ptx::publish_shared();
    __syncthreads();
    // Pieces of 8 x 8 values, those of the next 8 values of the same rows behind those of all rows.
    u64 a = ptx::matrix_at(shared, rows / 8 * piece * 2, piece * 2);
    u64 b = ptx::matrix_at(shared + rows * depth, columns / 8 * piece * 2, piece * 2);
    float sums[64] = {};
    for (int round = 0; round < rounds; round++) {
        ptx::wgmma_begin();
#pragma unroll
        for (int chain = 0; chain < CHAINS; chain++) ptx::wgmma_bf16(sums, a, b, true);
        ptx::wgmma_made();
        ptx::wgmma_wait<0>();
    }
    float sum = 0.0f;
    for (int i = 0; i < 64; i++) sum += sums[i];
    out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

#endif

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
