// Streams and events: queues of work. Work is done as soon as it is put in, or, with CUDA_EMULATOR_LATE, when something
// asks for its results: what a program forgets to wait for is then not there.
#include <chrono>
#include <set>

#include "state.h"

namespace emulator {

static CUstream_st legacy;
static std::set<CUstream> streams;
static std::set<CUevent> events;

// Puts the stream that null (or 1, or 2) stands for in its place.
bool known_stream(CUstream &stream) {
    if (uintptr_t(stream) <= 2) {
        stream = &legacy;
        return true;
    }
    return streams.count(stream) != 0;
}

static double now() {
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

CUresult drain(CUstream stream, unsigned long long mark) {
    while (stream->done < mark && !stream->queue.empty()) {
        auto next = std::move(stream->queue.front());
        stream->queue.pop_front();
        const CUresult result = next();
        stream->done++;
        if (result != CUDA_SUCCESS) {
            set_lasting_error(result);
            return result;
        }
    }
    return lasting_error();
}

CUresult drain_all() {
    TRY(drain(&legacy, legacy.put));
    for (CUstream stream : streams) TRY(drain(stream, stream->put));
    return CUDA_SUCCESS;
}

static CUresult put(CUstream stream, std::function<CUresult()> run) {
    // The legacy stream and blocking ones wait for each other.
    if (stream == &legacy) {
        for (CUstream other : streams)
            if (other->blocking) TRY(drain(other, other->put));
    } else if (stream->blocking) {
        TRY(drain(&legacy, legacy.put));
    }
    stream->queue.push_back(std::move(run));
    stream->put++;
    return settings().late ? CUDA_SUCCESS : drain(stream, stream->put);
}

CUresult submit(CUstream stream, Work work) {
    if (stream == &legacy) {
        for (CUstream other : streams)
            if (other->blocking && other->capture) {
                other->capture->valid = false;
                return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
            }
    }
    if (stream->capture) return put_into_graph(stream, std::move(work));
    return put(stream, std::move(work.run));
}

static CUresult reach(CUevent event) {
    return event->stream && (event->stream == &legacy || streams.count(event->stream)) ? drain(event->stream, event->mark) : lasting_error();
}

} // namespace emulator

using namespace emulator;

EXPORTED CUresult cuStreamCreate(CUstream *stream, unsigned flags) {
    ENTER();
    TRY(refuse_during_capture());
    *stream = new CUstream_st;
    (*stream)->blocking = (flags & CU_STREAM_NON_BLOCKING) == 0;
    streams.insert(*stream);
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int) { return cuStreamCreate(stream, flags); }

EXPORTED CUresult cuStreamDestroy_v2(CUstream stream) {
    ENTER();
    if (streams.count(stream) == 0) return CUDA_ERROR_INVALID_HANDLE;
    TRY(drain(stream, stream->put));
    streams.erase(stream);
    delete stream;
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuStreamSynchronize(CUstream stream) {
    ENTER();
    if (!known_stream(stream)) return CUDA_ERROR_INVALID_HANDLE;
    TRY(refuse_on(stream));
    return drain(stream, stream->put);
}

EXPORTED CUresult cuStreamQuery(CUstream stream) {
    ENTER();
    if (!known_stream(stream)) return CUDA_ERROR_INVALID_HANDLE;
    TRY(refuse_on(stream));
    // Who asks again and again must see it end.
    const bool ready = stream->done == stream->put;
    TRY(drain(stream, stream->put));
    return ready ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

EXPORTED CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned) {
    ENTER();
    if (!known_stream(stream) || events.count(event) == 0) return CUDA_ERROR_INVALID_HANDLE;
    if (event->capture) {
        if (stream->capture && stream->capture != event->capture) return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
        if (!stream->capture) {
            // The stream joins the capture.
            stream->capture = event->capture;
            event->capture->streams.push_back(stream);
        }
        stream->last.insert(stream->last.end(), event->nodes.begin(), event->nodes.end());
        return CUDA_SUCCESS;
    }
    if (stream->capture) return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    const CUstream other = event->stream;
    const unsigned long long mark = event->mark;
    if (!other) return CUDA_SUCCESS;
    return put(stream, [other, mark] { return other == &legacy || streams.count(other) ? drain(other, mark) : CUDA_SUCCESS; });
}

EXPORTED CUresult cuEventCreate(CUevent *event, unsigned flags) {
    ENTER();
    *event = new CUevent_st;
    (*event)->timed = (flags & CU_EVENT_DISABLE_TIMING) == 0;
    events.insert(*event);
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuEventDestroy_v2(CUevent event) {
    ENTER();
    if (events.erase(event) == 0) return CUDA_ERROR_INVALID_HANDLE;
    delete event;
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuEventRecord(CUevent event, CUstream stream) {
    ENTER();
    if (!known_stream(stream) || events.count(event) == 0) return CUDA_ERROR_INVALID_HANDLE;
    event->capture = stream->capture;
    event->nodes = stream->last;
    if (stream->capture) return stream->capture->valid ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    event->stream = stream;
    event->mark = stream->put + 1;
    return put(stream, [event] {
        if (events.count(event)) event->time = now();
        return CUDA_SUCCESS;
    });
}

EXPORTED CUresult cuEventSynchronize(CUevent event) {
    ENTER();
    if (events.count(event) == 0) return CUDA_ERROR_INVALID_HANDLE;
    if (event->capture) return CUDA_ERROR_CAPTURED_EVENT;
    TRY(refuse_during_capture());
    return reach(event);
}

EXPORTED CUresult cuEventQuery(CUevent event) {
    ENTER();
    if (events.count(event) == 0) return CUDA_ERROR_INVALID_HANDLE;
    if (event->capture) return CUDA_ERROR_CAPTURED_EVENT;
    TRY(refuse_during_capture());
    const bool ready = !event->stream || event->stream->done >= event->mark;
    TRY(reach(event));
    return ready ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

EXPORTED CUresult cuEventElapsedTime(float *milliseconds, CUevent from, CUevent to) {
    ENTER();
    if (events.count(from) == 0 || events.count(to) == 0 || !from->timed || !to->timed) return CUDA_ERROR_INVALID_HANDLE;
    TRY(reach(from));
    TRY(reach(to));
    *milliseconds = float(to->time - from->time);
    return CUDA_SUCCESS;
}
EXPORTED CUresult cuEventElapsedTime_v2(float *milliseconds, CUevent from, CUevent to) {
    return cuEventElapsedTime(milliseconds, from, to);
}
