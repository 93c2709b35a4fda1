// What kernels may not do, and what is told of it.
#include <cmath>

#include "cuda.h"

static const char *SOURCE = R"(
extern "C" __global__ void put(int *at, int index) { at[index + threadIdx.x] = 1; }
extern "C" __global__ void get(const float *at, float *out, int index) { out[threadIdx.x] = at[index + threadIdx.x]; }
extern "C" __global__ void wide(const float *at, float4 *out) { out[0] = *(const float4 *)(at + threadIdx.x + 1); }
extern "C" __global__ void half_barrier(float *out) {
    if (threadIdx.x < 32) __syncthreads();
    else __shfl_xor_sync(FULL_WARP, 1.0f, threadIdx.x == 40 ? 1 : 2);
    if (threadIdx.x >= 32 && threadIdx.x < 40) __syncthreads();
    __syncwarp();
    out[threadIdx.x] = 1.0f;
}
extern "C" __global__ void half_warp(float *out) {
    if (threadIdx.x < 16) out[threadIdx.x] = warp_sum(1.0f);
}
extern "C" __global__ void behind_array(int *out, int index) {
    __shared__ int few[4];
    few[index] = 1;
    __syncthreads();
    out[0] = few[0];
}
extern "C" __global__ void behind_shared(int *out, int index) {
    extern __shared__ int room[];
    room[index] = 1;
    __syncthreads();
    out[0] = room[0];
}
extern "C" __global__ void unset(float *out) {
    __shared__ float fixed[4];
    extern __shared__ float room[];
    out[0] = fixed[threadIdx.x], out[1] = room[threadIdx.x];
}
extern "C" __global__ void __launch_bounds__(SIZE, 1) bounded(int *out) { out[threadIdx.x] = 1; }
)";

TEST(writing_behind_an_allocation_is_seen) {
    const Card card(SOURCE);
    const Values<int> few(10);
    OK(card.launch("put", 10, 0, few.at, 0));
    EXPECT(card.launch("put", 1, 0, few.at, 10), CUDA_ERROR_ILLEGAL_ADDRESS);
    // It lasts.
    EXPECT(cuStreamSynchronize(card.stream), CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST(writing_in_front_of_an_allocation_is_seen) {
    const Card card(SOURCE);
    const Values<int> few(10);
    EXPECT(card.launch("put", 1, 0, few.at, -1), CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST(reading_far_behind_an_allocation_is_seen) {
    const Card card(SOURCE);
    const Values<float> few(64), out(1);
    OK(card.launch("get", 1, 0, few.at, out.at, 63));
    EXPECT(card.launch("get", 1, 0, few.at, out.at, 64), CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST(memory_that_was_given_back_is_out_of_reach) {
    const Card card(SOURCE);
    const Values<float> few(64), out(1);
    OK(cuMemFree_v2(few.at));
    EXPECT(card.launch("get", 1, 0, few.at, out.at, 0), CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST(a_misaligned_vector_is_seen) {
    const Card card(SOURCE);
    const Values<float> few(64), out(4);
    EXPECT(card.launch("wide", 1, 0, few.at, out.at), CUDA_ERROR_MISALIGNED_ADDRESS);
}

TEST(fresh_memory_is_no_number) {
    const Card card(SOURCE);
    const Values<float> out(2);
    OK(card.launch("unset", 1, 16, out.at));
    for (float value : out.get(card)) CHECK(std::isnan(value));
    for (float value : Values<float>(3).get(card)) CHECK(std::isnan(value));
}

TEST(a_barrier_that_some_miss_is_told) {
    const Card card(SOURCE);
    const Values<float> out(64);
    EXPECT(card.launch("half_barrier", 64, 0, out.at), CUDA_ERROR_LAUNCH_FAILED);
}

TEST(an_exchange_without_all_lanes_is_told) {
    const Card card(SOURCE);
    const Values<float> out(64);
    EXPECT(card.launch("half_warp", 32, 0, out.at), CUDA_ERROR_LAUNCH_FAILED);
}

TEST(an_index_outside_of_a_shared_array_is_seen) {
    const Card card(SOURCE);
    const Values<int> out(1);
    OK(card.launch("behind_array", 1, 0, out.at, 3));
    EXPECT(card.launch("behind_array", 1, 0, out.at, 4), CUDA_ERROR_MISALIGNED_ADDRESS);
}

TEST(writing_behind_shared_memory_is_seen) {
    const Card card(SOURCE);
    const Values<int> out(1);
    OK(card.launch("behind_shared", 1, 64, out.at, 15));
    EXPECT(card.launch("behind_shared", 1, 64, out.at, 16), CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST(launches_beyond_limits_are_refused) {
    const Card card(SOURCE);
    const Values<int> out(64);
    OK(card.launch("bounded", 64, 0, out.at));
    EXPECT(card.launch("bounded", 65, 0, out.at), CUDA_ERROR_INVALID_VALUE);
    EXPECT(card.launch("behind_shared", 1, 50000, out.at, 0), CUDA_ERROR_INVALID_VALUE);
    const CUfunction function = card.kernel("behind_shared");
    EXPECT(cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 300000), CUDA_ERROR_INVALID_VALUE);
    OK(cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 50000));
    OK(card.launch("behind_shared", 1, 50000, out.at, 0));
    // A launch that was refused harms nothing.
    OK(cuStreamSynchronize(card.stream));
}

TEST(memory_ends_when_asked_for, {"CUDA_EMULATOR_FAULTS", "memory 1000"}) {
    const Card card(SOURCE);
    const Values<char> most(900);
    CUdeviceptr more;
    EXPECT(cuMemAlloc_v2(&more, 101), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuMemAlloc_v2(&more, 100));
}

TEST(launches_fail_when_asked_for, {"CUDA_EMULATOR_FAULTS", "launch 2, kernel 3"}) {
    const Card card(SOURCE);
    const Values<int> out(1);
    OK(card.launch("put", 1, 0, out.at, 0));
    EXPECT(card.launch("put", 1, 0, out.at, 0), CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
    OK(card.launch("put", 1, 0, out.at, 0));
    EXPECT(card.launch("put", 1, 0, out.at, 0), CUDA_ERROR_ILLEGAL_ADDRESS);
    EXPECT(cuStreamSynchronize(card.stream), CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST(the_card_goes_when_asked_for, {"CUDA_EMULATOR_FAULTS", "lost 1"}) {
    const Card card(SOURCE);
    const Values<int> out(1);
    EXPECT(card.launch("put", 1, 0, out.at, 0), CUDA_ERROR_UNKNOWN);
    EXPECT(cuMemFree_v2(out.at), CUDA_ERROR_UNKNOWN);
}
