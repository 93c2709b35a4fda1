// Kernels that may begin before the end of the one in front of them.
#include <cstring>

#include "cuda.h"

static const char *SOURCE = R"(
extern "C" __global__ void make(float *at) { in_turn(); at[threadIdx.x] = 1.0f; }
extern "C" __global__ void waits(const float *at, float *out) { in_turn(); out[threadIdx.x] = at[threadIdx.x]; }
extern "C" __global__ void reads_first(const float *at, float *out) {
    const float value = at[threadIdx.x];
    ptx::wait_for_kernel_before();
    out[threadIdx.x] = value;
}
extern "C" __global__ void writes_first(const float *at, float *out) {
    out[threadIdx.x] = 2.0f;
    ptx::wait_for_kernel_before();
    out[threadIdx.x] = at[threadIdx.x];
}
extern "C" __global__ void copies_first(const float *at, float *out) {
    __shared__ float4 room[SIZE];
    ptx::copy_16(room + threadIdx.x, at);
    ptx::copies_made();
    ptx::wait_for_kernel_before();
    ptx::copies_wait<0>();
    __syncthreads();
    out[threadIdx.x] = room[threadIdx.x].x;
}
extern "C" __global__ void some_wait(const float *at, float *out) {
    if (threadIdx.x == 0) return;
    in_turn();
    out[threadIdx.x] = at[threadIdx.x];
}
extern "C" __global__ void meets_first(const float *at, float *out) {
    __shared__ float room[SIZE];
    room[threadIdx.x] = (float)threadIdx.x;
    __syncthreads();
    const float other = room[SIZE - 1 - threadIdx.x];
    in_turn();
    out[threadIdx.x] = at[threadIdx.x] + other;
}
)";

static CUresult launch_early(const Card &card, const char *name, CUdeviceptr from, CUdeviceptr to) {
    CUlaunchAttribute attribute = {6, {}, {}};
    const int yes = 1;
    std::memcpy(attribute.value, &yes, sizeof yes);
    const CUlaunchConfig config = {2, 1, 1, 64, 1, 1, 0, card.stream, &attribute, 1};
    void *pointers[] = {&from, &to};
    return cuLaunchKernelEx(&config, card.kernel(name), pointers, nullptr);
}

static void forbidden(const char *name) {
    const Card card(SOURCE);
    const Values<float> made(64), out(64);
    OK(card.launch("make", 64, 0, made.at));
    const CUresult result = launch_early(card, name, made.at, out.at);
    CHECK(result == CUDA_ERROR_ILLEGAL_ADDRESS || result == CUDA_ERROR_LAUNCH_FAILED);
}

TEST(a_kernel_waits_and_finds_what_was_made) {
    const Card card(SOURCE);
    const Values<float> made(64), out(64);
    for (int turn = 0; turn < 40; turn++) {
        OK(card.launch("make", 64, 0, made.at));
        OK(launch_early(card, "waits", made.at, out.at));
        CHECK(out.get(card)[63] == 1.0f);
        OK(launch_early(card, "meets_first", made.at, out.at));
        CHECK(out.get(card)[0] == 64.0f);
    }
}

TEST(reading_before_the_wait_is_seen) { forbidden("reads_first"); }
TEST(copying_before_the_wait_is_seen) { forbidden("copies_first"); }
TEST(writing_before_the_wait_is_seen) { forbidden("writes_first"); }
TEST(a_thread_that_does_not_wait_is_seen) { forbidden("some_wait"); }

TEST(what_the_host_has_copied_may_be_read_before) {
    const Card card(SOURCE);
    const Values<float> copied(std::vector<float>(64, 3.0f)), out(64);
    OK(launch_early(card, "reads_first", copied.at, out.at));
    OK(launch_early(card, "copies_first", copied.at, out.at));
    CHECK(out.get(card)[5] == 3.0f);
    // As an ordinary launch it may do as it likes.
    const Values<float> made(64);
    OK(card.launch("make", 64, 0, made.at));
    OK(card.launch("writes_first", 64, 0, made.at, out.at));
    CHECK(out.get(card)[5] == 1.0f);
}

// Who wrote to a page last decides, and each page for itself.
TEST(what_a_kernel_has_written_over_may_not_be_read_before) {
    const Card card(SOURCE);
    const std::vector<float> threes(64 + 4096, 3.0f);
    const Values<float> table(threes), out(64);
    const CUdeviceptr behind = table.at + 4096 * sizeof(float);
    OK(card.launch("make", 64, 0, table.at));
    OK(launch_early(card, "reads_first", behind, out.at));
    CHECK(out.get(card)[5] == 3.0f);
    OK(cuMemcpyHtoDAsync_v2(table.at, threes.data(), 64 * sizeof(float), card.stream));
    OK(launch_early(card, "reads_first", table.at, out.at));
    CHECK(out.get(card)[5] == 3.0f);
    OK(card.launch("make", 64, 0, behind));
    OK(launch_early(card, "reads_first", table.at, out.at));
    CHECK(table.get(card)[4096] == 1.0f);
    EXPECT(launch_early(card, "reads_first", behind, out.at), CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST(what_was_filled_over_may_not_be_read_before) {
    const Card card(SOURCE);
    const Values<float> table(std::vector<float>(64, 3.0f)), out(64);
    OK(cuMemsetD32Async(table.at, 0, 64, card.stream));
    EXPECT(launch_early(card, "reads_first", table.at, out.at), CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST(a_graph_keeps_who_may_begin_early) {
    const Card card(SOURCE);
    const Values<float> made(64), out(64);
    for (const char *name : {"waits", "reads_first"}) {
        OK(cuStreamBeginCapture_v2(card.stream, CU_STREAM_CAPTURE_MODE_RELAXED));
        OK(card.launch("make", 64, 0, made.at));
        OK(launch_early(card, name, made.at, out.at));
        CUgraph graph;
        CUgraphExec exec;
        OK(cuStreamEndCapture(card.stream, &graph));
        OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
        const bool sound = std::strcmp(name, "waits") == 0;
        EXPECT(cuGraphLaunch(exec, card.stream), sound ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_ADDRESS);
    }
}

TEST(older_cards_refuse_it, {"CUDA_EMULATOR_CAPABILITY", "89"}) {
    const Card card(SOURCE);
    const Values<float> out(64);
    EXPECT(launch_early(card, "waits", out.at, out.at), CUDA_ERROR_NOT_SUPPORTED);
}
