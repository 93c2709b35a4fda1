// Copies and fills.
#include <cstring>

#include "state.h"

using namespace emulator;

// Where memory must lie.
enum class Place { DEVICE, HOST };

static bool sound(Place place, const void *at, size_t bytes) {
    return place == Place::HOST || bytes == 0 || device_range(CUdeviceptr(uintptr_t(at)), bytes);
}

static CUresult copy(void *to, Place to_place, const void *from, Place from_place, size_t bytes, CUstream stream, bool wait) {
    ENTER();
    if (!known_stream(stream)) return CUDA_ERROR_INVALID_HANDLE;
    if (!sound(to_place, to, bytes) || !sound(from_place, from, bytes)) {
        say("a copy of %zu bytes reaches out of an allocation", bytes);
        return CUDA_ERROR_INVALID_VALUE;
    }
    const bool pageable = (to_place == Place::HOST && !is_pinned(to)) || (from_place == Place::HOST && !is_pinned(from));
    if (wait) TRY(refuse_during_capture());
    if (wait || pageable) TRY(refuse_on(stream));
    const bool by_host = from_place == Place::HOST && to_place == Place::DEVICE;
    Work work = {CU_GRAPH_NODE_TYPE_MEMCPY, nullptr, [=] {
                     by_host ? write_as_host(to, from, bytes) : void(std::memmove(to, from, bytes));
                     return CUDA_SUCCESS;
                 }};
    if (from_place == Place::HOST && pageable) {
        // Taken over before the call returns.
        auto taken = std::make_shared<std::vector<unsigned char>>(
            static_cast<const unsigned char *>(from), static_cast<const unsigned char *>(from) + bytes
        );
        work.run = [=] {
            by_host ? write_as_host(to, taken->data(), bytes) : void(std::memcpy(to, taken->data(), bytes));
            return CUDA_SUCCESS;
        };
    }
    TRY(submit(stream, std::move(work)));
    // To pageable memory, the call returns when it is there.
    const bool returns_late = wait || (to_place == Place::HOST && pageable);
    return returns_late ? drain(stream, stream->put) : CUDA_SUCCESS;
}

static void *host(CUdeviceptr pointer) { return reinterpret_cast<void *>(uintptr_t(pointer)); }

EXPORTED CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, CUstream stream) {
    return copy(host(to), Place::DEVICE, from, Place::HOST, bytes, stream, false);
}
EXPORTED CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, CUstream stream) {
    return copy(to, Place::HOST, host(from), Place::DEVICE, bytes, stream, false);
}
EXPORTED CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
    return copy(host(to), Place::DEVICE, host(from), Place::DEVICE, bytes, stream, false);
}
EXPORTED CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes) {
    return copy(host(to), Place::DEVICE, from, Place::HOST, bytes, nullptr, true);
}
EXPORTED CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes) {
    return copy(to, Place::HOST, host(from), Place::DEVICE, bytes, nullptr, true);
}
EXPORTED CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    return copy(host(to), Place::DEVICE, host(from), Place::DEVICE, bytes, nullptr, true);
}
// What kernels of a library write: not the host's.
EXPORTED CUresult emulator_write(CUdeviceptr to, const void *from, size_t bytes) {
    ENTER();
    if (!sound(Place::DEVICE, host(to), bytes)) return CUDA_ERROR_INVALID_VALUE;
    std::memcpy(host(to), from, bytes);
    return CUDA_SUCCESS;
}
// Cards share one memory here; that they are not the ones whose memory it is goes unseen.
EXPORTED CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext here, CUdeviceptr from, CUcontext there, size_t bytes, CUstream stream) {
    if (!here || !there) return CUDA_ERROR_INVALID_CONTEXT;
    return copy(host(to), Place::DEVICE, host(from), Place::DEVICE, bytes, stream, false);
}
EXPORTED CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
    const auto place = [](CUdeviceptr at) { return allocation_at(uintptr_t(at)) ? Place::DEVICE : Place::HOST; };
    return copy(host(to), place(to), host(from), place(from), bytes, stream, false);
}

template <class T> static CUresult fill(CUdeviceptr to, T value, size_t count, CUstream stream, bool wait) {
    ENTER();
    if (!known_stream(stream)) return CUDA_ERROR_INVALID_HANDLE;
    if (!sound(Place::DEVICE, host(to), count * sizeof(T)) || to % sizeof(T) != 0) return CUDA_ERROR_INVALID_VALUE;
    if (wait) TRY(refuse_during_capture());
    Work work = {CU_GRAPH_NODE_TYPE_MEMSET, nullptr, [=] {
                     T *at = static_cast<T *>(host(to));
                     for (size_t i = 0; i < count; i++) at[i] = value;
                     return CUDA_SUCCESS;
                 }};
    TRY(submit(stream, std::move(work)));
    return wait ? drain(stream, stream->put) : CUDA_SUCCESS;
}

EXPORTED CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, CUstream stream) {
    return fill(to, value, count, stream, false);
}
EXPORTED CUresult cuMemsetD16Async(CUdeviceptr to, unsigned short value, size_t count, CUstream stream) {
    return fill(to, value, count, stream, false);
}
EXPORTED CUresult cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t count, CUstream stream) {
    return fill(to, value, count, stream, false);
}
EXPORTED CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t count) { return fill(to, value, count, nullptr, true); }
EXPORTED CUresult cuMemsetD32_v2(CUdeviceptr to, unsigned value, size_t count) { return fill(to, value, count, nullptr, true); }
