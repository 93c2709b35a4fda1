// Captures and graphs.
#include "cuda.h"

static const char *SOURCE = R"(
extern "C" __global__ void add(int *at, int value) { at[threadIdx.x] += value; }
)";

static CUgraph capture(const Card &card, CUdeviceptr at, const std::vector<int> &values) {
    CUgraph graph;
    OK(cuStreamBeginCapture_v2(card.stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    for (int value : values) OK(card.launch("add", 4, 0, at, value));
    OK(cuStreamEndCapture(card.stream, &graph));
    return graph;
}

TEST(what_is_captured_is_done_when_the_graph_is_launched) {
    const Card card(SOURCE);
    const Values<int> values(std::vector<int>(4, 0));
    const CUgraph graph = capture(card, values.at, {1, 10});
    CHECK(values.get(card)[0] == 0);
    CUgraphExec exec;
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    OK(cuGraphLaunch(exec, card.stream));
    OK(cuGraphLaunch(exec, card.stream));
    CHECK(values.get(card)[3] == 22);

    // Another value for the second node.
    CUgraphNode nodes[2];
    size_t count = 2;
    OK(cuGraphGetNodes(graph, nodes, &count));
    CUDA_KERNEL_NODE_PARAMS params;
    OK(cuGraphKernelNodeGetParams_v2(nodes[1], &params));
    CHECK(count == 2 && params.blockDimX == 4 && *static_cast<int *>(params.kernelParams[1]) == 10);
    int hundred = 100;
    CUdeviceptr at = values.at;
    void *arguments[] = {&at, &hundred};
    params.kernelParams = arguments;
    OK(cuGraphExecKernelNodeSetParams_v2(exec, nodes[1], &params));
    OK(cuGraphLaunch(exec, card.stream));
    CHECK(values.get(card)[0] == 123);

    // Another capture of the same shape, and one of another.
    CUgraphExecUpdateResultInfo info;
    OK(cuGraphExecUpdate_v2(exec, capture(card, values.at, {2, 3}), &info));
    OK(cuGraphLaunch(exec, card.stream));
    CHECK(values.get(card)[0] == 128);
    EXPECT(cuGraphExecUpdate_v2(exec, capture(card, values.at, {2}), &info), CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
    CHECK(info.result == CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED);
}

// Runs what is forbidden in a capture, which is spoilt by it.
static void forbidden(const std::function<CUresult(const Card &, CUdeviceptr)> &run) {
    const Card card(SOURCE);
    const Values<int> values(std::vector<int>(4, 0));
    OK(cuStreamBeginCapture_v2(card.stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    OK(card.launch("add", 4, 0, values.at, 1));
    EXPECT(run(card, values.at), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    CUgraph graph;
    EXPECT(cuStreamEndCapture(card.stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    // The stream is an ordinary one again.
    OK(card.launch("add", 4, 0, values.at, 5));
    CHECK(values.get(card)[0] == 5);
}

TEST(a_capture_does_not_wait) {
    forbidden([](const Card &card, CUdeviceptr) { return cuStreamSynchronize(card.stream); });
    forbidden([](const Card &, CUdeviceptr) { return cuCtxSynchronize(); });
}

TEST(a_capture_does_not_allocate) {
    forbidden([](const Card &, CUdeviceptr) {
        CUdeviceptr at;
        return cuMemAlloc_v2(&at, 16);
    });
    forbidden([](const Card &, CUdeviceptr at) { return cuMemFree_v2(at); });
}

TEST(a_capture_does_not_copy_pageable_memory) {
    forbidden([](const Card &card, CUdeviceptr at) {
        int host[4] = {};
        return cuMemcpyHtoDAsync_v2(at, host, 16, card.stream);
    });
}

TEST(a_relaxed_capture_allocates) {
    const Card card(SOURCE);
    OK(cuStreamBeginCapture_v2(card.stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    const Values<int> values(4);
    OK(cuMemsetD32Async(values.at, 3, 4, card.stream));
    OK(card.launch("add", 4, 0, values.at, 1));
    CUgraph graph;
    OK(cuStreamEndCapture(card.stream, &graph));
    CUgraphExec exec;
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    OK(cuGraphLaunch(exec, card.stream));
    CHECK(values.get(card)[2] == 4);
}

TEST(a_graph_reads_pinned_memory_when_it_is_launched) {
    const Card card(SOURCE);
    const Values<int> values(std::vector<int>(4, 0));
    int *pinned;
    OK(cuMemHostAlloc(reinterpret_cast<void **>(&pinned), 16, 0));
    for (int i = 0; i < 4; i++) pinned[i] = 1;
    OK(cuStreamBeginCapture_v2(card.stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    OK(cuMemcpyHtoDAsync_v2(values.at, pinned, 16, card.stream));
    OK(card.launch("add", 4, 0, values.at, 1));
    CUgraph graph;
    CUgraphExec exec;
    OK(cuStreamEndCapture(card.stream, &graph));
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    pinned[1] = 40;
    OK(cuGraphLaunch(exec, card.stream));
    CHECK(values.get(card)[0] == 2 && values.get(card)[1] == 41);
}

TEST(streams_join_a_capture_and_must_come_back) {
    const Card card(SOURCE);
    const Values<int> values(std::vector<int>(4, 0));
    CUstream other;
    CUevent fork, join;
    OK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&fork, CU_EVENT_DISABLE_TIMING));
    OK(cuEventCreate(&join, CU_EVENT_DISABLE_TIMING));
    for (bool back : {false, true}) {
        OK(cuStreamBeginCapture_v2(card.stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
        OK(card.launch("add", 4, 0, values.at, 1));
        OK(cuEventRecord(fork, card.stream));
        OK(cuStreamWaitEvent(other, fork, 0));
        CUdeviceptr at = values.at;
        int two = 2;
        void *arguments[] = {&at, &two};
        OK(cuLaunchKernel(card.kernel("add"), 1, 1, 1, 4, 1, 1, 0, other, arguments, nullptr));
        EXPECT(cuEventQuery(fork), CUDA_ERROR_CAPTURED_EVENT);
        if (back) {
            OK(cuEventRecord(join, other));
            OK(cuStreamWaitEvent(card.stream, join, 0));
        }
        CUgraph graph;
        EXPECT(cuStreamEndCapture(card.stream, &graph), back ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
        if (!back) continue;
        CUgraphExec exec;
        OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
        OK(cuGraphLaunch(exec, card.stream));
        CHECK(values.get(card)[0] == 3);
    }
}
