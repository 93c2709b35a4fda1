// Streams that write down what is put on them instead of doing it.
#include <atomic>
#include <set>

#include "state.h"

namespace emulator {

static std::set<std::shared_ptr<Capture>> captures;
static thread_local CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

// Numbers threads, so that captures know theirs.
static unsigned long long this_thread() {
    static std::atomic<unsigned long long> next{1};
    static thread_local unsigned long long mine = next++;
    return mine;
}

CUresult refuse_during_capture() {
    if (thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_SUCCESS;
    for (const auto &capture : captures) {
        const bool own = capture->thread == this_thread();
        const bool forbids = own ? capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED
                                 : capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL && thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
        if (!forbids) continue;
        capture->valid = false;
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    return CUDA_SUCCESS;
}

CUresult refuse_on(CUstream stream) {
    if (!stream->capture) return CUDA_SUCCESS;
    stream->capture->valid = false;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

CUresult put_into_graph(CUstream stream, Work work) {
    Capture &capture = *stream->capture;
    if (!capture.valid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    auto node = std::make_unique<CUgraphNode_st>();
    node->work = std::move(work);
    node->after = stream->last;
    stream->last = {node.get()};
    capture.graph->nodes.push_back(std::move(node));
    return CUDA_SUCCESS;
}

} // namespace emulator

using namespace emulator;

EXPORTED CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
    ENTER();
    if (uintptr_t(stream) <= 1) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (!known_stream(stream)) return CUDA_ERROR_INVALID_HANDLE;
    if (stream->capture) return CUDA_ERROR_INVALID_VALUE;
    auto capture = std::make_shared<Capture>();
    capture->graph = new CUgraph_st;
    capture->origin = stream;
    capture->mode = mode;
    capture->thread = this_thread();
    capture->streams = {stream};
    captures.insert(capture);
    stream->capture = capture;
    stream->last.clear();
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph) {
    ENTER();
    *graph = nullptr;
    if (!known_stream(stream)) return CUDA_ERROR_INVALID_HANDLE;
    const auto capture = stream->capture;
    if (!capture) return CUDA_ERROR_INVALID_VALUE;
    if (capture->origin != stream) return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture->thread != this_thread())
        return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    // What other streams did last must be among what the origin waits for.
    std::set<CUgraphNode> reached(stream->last.begin(), stream->last.end());
    for (auto node = capture->graph->nodes.rbegin(); node != capture->graph->nodes.rend(); ++node)
        if (reached.count(node->get())) reached.insert((*node)->after.begin(), (*node)->after.end());
    bool joined = true;
    for (CUstream other : capture->streams) {
        for (CUgraphNode last : other->last) joined = joined && reached.count(last);
        other->capture = nullptr;
        other->last.clear();
    }
    captures.erase(capture);
    if (!capture->valid || !joined) {
        delete capture->graph;
        return capture->valid ? CUDA_ERROR_STREAM_CAPTURE_UNJOINED : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    *graph = capture->graph;
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status) {
    ENTER();
    if (!known_stream(stream)) return CUDA_ERROR_INVALID_HANDLE;
    *status = !stream->capture       ? CU_STREAM_CAPTURE_STATUS_NONE
              : stream->capture->valid ? CU_STREAM_CAPTURE_STATUS_ACTIVE
                                       : CU_STREAM_CAPTURE_STATUS_INVALIDATED;
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode) {
    ENTER();
    std::swap(*mode, thread_mode);
    return CUDA_SUCCESS;
}
