// Missing barriers and waits change results with the order.
#include <cmath>

#include "cuda.h"

static const char *SOURCE = R"(
template <bool barrier> static __device__ void turn(const int *from, int *to) {
    __shared__ int all[128];
    const int t = threadIdx.x;
    all[t] = from[t];
    if (barrier) __syncthreads();
    to[t] = all[127 - t];
}
extern "C" __global__ void with_barrier(const int *from, int *to) { turn<true>(from, to); }
extern "C" __global__ void without(const int *from, int *to) { turn<false>(from, to); }
template <bool wait> static __device__ void late(const int4 *from, int4 *to) {
    __shared__ int4 all[32];
    ptx::copy_16(all + threadIdx.x, from + threadIdx.x);
    ptx::copies_made();
    ptx::copy_16(all + threadIdx.x, from + 31 - threadIdx.x, 8);
    ptx::copies_made();
    if (wait) ptx::copies_wait<0>();
    else ptx::copies_wait<1>();
    to[threadIdx.x] = all[threadIdx.x];
}
extern "C" __global__ void all_copies(const int4 *from, int4 *to) { late<true>(from, to); }
extern "C" __global__ void first_copy(const int4 *from, int4 *to) { late<false>(from, to); }
extern "C" __global__ void sums(float *out) {
    __shared__ float scratch[32];
    out[threadIdx.x] = block_sum((float)threadIdx.x, scratch);
    const unsigned odd = __ballot_sync(FULL_WARP, threadIdx.x & 1);
    const float before = __shfl_up_sync(FULL_WARP, (float)threadIdx.x, 1);
    if (odd != 0xaaaaaaaau || before != (float)(threadIdx.x % 32 == 0 ? threadIdx.x : threadIdx.x - 1)) out[threadIdx.x] = -1.0f;
    if (__syncthreads_count(threadIdx.x < 5) != 5) out[threadIdx.x] = -2.0f;
}
)";

static std::vector<int> count_up(int count) {
    std::vector<int> all;
    for (int i = 0; i < count; i++) all.push_back(i);
    return all;
}

static bool turned(const char *kernel) {
    const Card card(SOURCE);
    const Values<int> from(count_up(128)), to(128);
    OK(card.launch(kernel, 128, 0, from.at, to.at));
    const std::vector<int> found = to.get(card);
    for (int i = 0; i < 128; i++)
        if (found[size_t(i)] != 127 - i) return false;
    return true;
}

TEST(a_barrier_helps) { CHECK(turned("with_barrier")); }
TEST(a_barrier_helps_backward, {"CUDA_EMULATOR_ORDER", "backward"}) { CHECK(turned("with_barrier")); }
TEST(a_barrier_helps_at_random, {"CUDA_EMULATOR_ORDER", "random:5"}) { CHECK(turned("with_barrier")); }
TEST(a_missing_barrier_shows) { CHECK(!turned("without")); }
TEST(a_missing_barrier_shows_backward, {"CUDA_EMULATOR_ORDER", "backward"}) { CHECK(!turned("without")); }

TEST(copies_are_there_when_waited_for) {
    const Card card(SOURCE);
    const Values<int> from(count_up(128)), to(128);
    OK(card.launch("all_copies", 32, 0, from.at, to.at));
    const std::vector<int> all = to.get(card);
    CHECK(all[4] == 120 && all[5] == 121 && all[6] == 0 && all[7] == 0);
    OK(card.launch("first_copy", 32, 0, from.at, to.at));
    const std::vector<int> first = to.get(card);
    CHECK(first[4] == 4 && first[7] == 7);
}

TEST(lanes_exchange) {
    const Card card(SOURCE);
    const Values<float> out(96);
    OK(card.launch("sums", 96, 0, out.at));
    for (float value : out.get(card)) CHECK(value == 4560.0f);
}

TEST(late_work_is_done_when_waited_for, {"CUDA_EMULATOR_LATE", "1"}) {
    const Card card(SOURCE);
    const Values<int> there(4);
    int *pinned, found[4] = {};
    OK(cuMemHostAlloc(reinterpret_cast<void **>(&pinned), 16, 0));
    for (int i = 0; i < 4; i++) pinned[i] = i;
    OK(cuMemcpyHtoDAsync_v2(there.at, pinned, 16, card.stream));
    // Too early: the copy has not begun.
    pinned[2] = 7;
    CUevent event;
    OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    OK(cuEventRecord(event, card.stream));
    EXPECT(cuEventQuery(event), CUDA_ERROR_NOT_READY);
    OK(cuEventQuery(event));
    OK(cuMemcpyDtoH_v2(found, there.at, 16));
    CHECK(found[1] == 1 && found[2] == 7);
}

TEST(streams_wait_for_events, {"CUDA_EMULATOR_LATE", "1"}) {
    const Card card(SOURCE);
    const Values<int> from(count_up(128)), to(128);
    CUstream other;
    CUevent event;
    OK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    OK(card.launch("with_barrier", 128, 0, from.at, to.at));
    OK(cuEventRecord(event, card.stream));
    OK(cuStreamWaitEvent(other, event, 0));
    int *pinned;
    OK(cuMemHostAlloc(reinterpret_cast<void **>(&pinned), 512, 0));
    OK(cuMemcpyDtoHAsync_v2(pinned, to.at, 512, other));
    CHECK(pinned[0] == -1);
    OK(cuStreamSynchronize(other));
    CHECK(pinned[0] == 127 && pinned[127] == 0);
}
