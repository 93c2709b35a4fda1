// NCCL for the emulated cards of one process: communicators made together (ncclCommInitAll), groups of calls, all-reduce and
// all-gather. Sums are made in the order of ranks. What a card would wait for in vain is a fault here: a rank whose partners
// are not asked for the same within the same group of calls.
//
// CUDA_EMULATOR_NCCL_FAULT=N has the Nth operation, counted from the program's start, and all after it fail.
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "../driver/api.h"

extern "C" {
CUresult cuInit(unsigned);
CUresult cuDeviceGetCount(int *);
CUresult cuDevicePrimaryCtxRetain(CUcontext *, CUdevice);
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice);
CUresult cuCtxGetCurrent(CUcontext *);
CUresult cuCtxSetCurrent(CUcontext);
CUresult cuStreamSynchronize(CUstream);
CUresult emulator_write(CUdeviceptr, const void *, size_t);
CUresult cuMemcpyDtoH_v2(void *, CUdeviceptr, size_t);
}

namespace {

enum Result : int {
    SUCCESS = 0,
    UNHANDLED_CUDA_ERROR = 1,
    INTERNAL_ERROR = 3,
    INVALID_ARGUMENT = 4,
    INVALID_USAGE = 5,
    REMOTE_ERROR = 6,
};

enum { FLOAT32 = 7, SUM = 0 };

// The ranks that were made together.
struct Clique {
    int ranks;
    int fault = SUCCESS;
};

} // namespace

struct ncclComm {
    std::shared_ptr<Clique> clique;
    int rank;
    int device;
    CUcontext context;
};

typedef ncclComm *ncclComm_t;

namespace {

enum class Kind { ALL_REDUCE, ALL_GATHER };

struct Call {
    Kind kind;
    const void *from;
    void *to;
    size_t count;
    ncclComm_t comm;
    CUstream stream;
};

std::mutex lock;
thread_local int depth = 0;
thread_local std::vector<Call> calls;
thread_local std::string last;
unsigned long long operations = 0;

__attribute__((format(printf, 2, 3))) int fail(int result, const char *format, ...) {
    char words[256];
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(words, sizeof words, format, arguments);
    va_end(arguments);
    last = words;
    std::fprintf(stderr, "cuda emulator: NCCL: %s\n", words);
    return result;
}

// The device's context is current while this lives.
struct Current {
    CUcontext before = nullptr;
    explicit Current(CUcontext context) {
        cuCtxGetCurrent(&before);
        cuCtxSetCurrent(context);
    }
    ~Current() { cuCtxSetCurrent(before); }
};

CUdeviceptr address(const void *pointer) { return CUdeviceptr(uintptr_t(pointer)); }

// One operation of a whole clique, its calls in the order of ranks.
int serve(const std::vector<Call> &all) {
    Clique &clique = *all[0].comm->clique;
    static const char *nth = std::getenv("CUDA_EMULATOR_NCCL_FAULT");
    if (++operations >= (nth ? std::strtoull(nth, nullptr, 10) : ~0ull)) {
        clique.fault = REMOTE_ERROR;
        return fail(REMOTE_ERROR, "operation %llu fails on demand", operations);
    }
    const size_t count = all[0].count;
    std::vector<std::vector<float>> parts;
    for (const Call &call : all) {
        if (call.kind != all[0].kind || call.count != count)
            return fail(INVALID_USAGE, "rank %d asks for another operation than rank 0", call.comm->rank);
        Current current(call.comm->context);
        std::vector<float> part(count);
        if (cuStreamSynchronize(call.stream) != CUDA_SUCCESS ||
            cuMemcpyDtoH_v2(part.data(), address(call.from), count * sizeof(float)) != CUDA_SUCCESS)
            return fail(UNHANDLED_CUDA_ERROR, "rank %d: its values cannot be read", call.comm->rank);
        parts.push_back(std::move(part));
    }
    std::vector<float> result;
    if (all[0].kind == Kind::ALL_REDUCE) {
        result = parts[0];
        for (size_t rank = 1; rank < parts.size(); rank++)
            for (size_t at = 0; at < count; at++) result[at] += parts[rank][at];
    } else {
        for (const auto &part : parts) result.insert(result.end(), part.begin(), part.end());
    }
    for (const Call &call : all) {
        Current current(call.comm->context);
        if (emulator_write(address(call.to), result.data(), result.size() * sizeof(float)) != CUDA_SUCCESS)
            return fail(UNHANDLED_CUDA_ERROR, "rank %d: its result cannot be written", call.comm->rank);
    }
    return SUCCESS;
}

// Serves what the thread's group has asked for: each rank's calls in their order.
int serve_group() {
    std::lock_guard<std::mutex> entered(lock);
    std::vector<Call> asked = std::move(calls);
    calls.clear();
    std::map<Clique *, std::vector<std::vector<Call>>> cliques;
    for (const Call &call : asked) {
        auto &ranks = cliques[call.comm->clique.get()];
        ranks.resize(size_t(call.comm->clique->ranks));
        ranks[size_t(call.comm->rank)].push_back(call);
    }
    for (auto &[clique, ranks] : cliques) {
        if (clique->fault != SUCCESS) return fail(clique->fault, "the communicators have failed before");
        for (const auto &own : ranks)
            if (own.size() != ranks[0].size())
                return fail(INTERNAL_ERROR, "not all ranks are asked for the same: a card would wait for ever");
        for (size_t at = 0; at < ranks[0].size(); at++) {
            std::vector<Call> all;
            for (const auto &own : ranks) all.push_back(own[at]);
            if (const int result = serve(all)) return result;
        }
    }
    return SUCCESS;
}

int ask(Call call, int type) {
    if (!call.comm) return fail(INVALID_ARGUMENT, "no communicator");
    if (type != FLOAT32) return fail(INVALID_ARGUMENT, "only ncclFloat32 is there");
    calls.push_back(call);
    return depth > 0 ? SUCCESS : serve_group();
}

} // namespace

EXPORTED int ncclGetVersion(int *version) {
    *version = 22703;
    return SUCCESS;
}

EXPORTED const char *ncclGetErrorString(int result) {
    switch (result) {
    case SUCCESS: return "no error";
    case UNHANDLED_CUDA_ERROR: return "unhandled cuda error";
    case INTERNAL_ERROR: return "internal error";
    case INVALID_ARGUMENT: return "invalid argument";
    case INVALID_USAGE: return "invalid usage";
    case REMOTE_ERROR: return "remote process exited or there was a network error";
    default: return "unknown result code";
    }
}

EXPORTED const char *ncclGetLastError(ncclComm_t) { return last.c_str(); }

EXPORTED int ncclCommInitAll(ncclComm_t *comms, int count, const int *devices) {
    int there = 0;
    if (cuInit(0) != CUDA_SUCCESS || cuDeviceGetCount(&there) != CUDA_SUCCESS)
        return fail(UNHANDLED_CUDA_ERROR, "no driver");
    if (count < 1 || count > there) return fail(INVALID_ARGUMENT, "%d communicators for %d cards", count, there);
    auto clique = std::make_shared<Clique>();
    clique->ranks = count;
    for (int rank = 0; rank < count; rank++) {
        const int device = devices ? devices[rank] : rank;
        if (device < 0 || device >= there) return fail(INVALID_ARGUMENT, "there is no card %d", device);
        for (int other = 0; devices && other < rank; other++)
            if (devices[other] == device) return fail(INVALID_USAGE, "card %d is named twice", device);
        comms[rank] = new ncclComm{clique, rank, device, nullptr};
        if (cuDevicePrimaryCtxRetain(&comms[rank]->context, device) != CUDA_SUCCESS)
            return fail(UNHANDLED_CUDA_ERROR, "card %d cannot be opened", device);
    }
    return SUCCESS;
}

EXPORTED int ncclCommDestroy(ncclComm_t comm) {
    if (!comm) return SUCCESS;
    cuDevicePrimaryCtxRelease_v2(comm->device);
    delete comm;
    return SUCCESS;
}

EXPORTED int ncclCommAbort(ncclComm_t comm) { return ncclCommDestroy(comm); }

EXPORTED int ncclCommGetAsyncError(ncclComm_t comm, int *fault) {
    if (!comm) return INVALID_ARGUMENT;
    *fault = comm->clique->fault;
    return SUCCESS;
}

EXPORTED int ncclGroupStart() {
    depth++;
    return SUCCESS;
}

EXPORTED int ncclGroupEnd() {
    if (depth == 0) return fail(INVALID_USAGE, "a group is ended that was not begun");
    return --depth > 0 ? int(SUCCESS) : serve_group();
}

EXPORTED int ncclAllReduce(
    const void *from, void *to, size_t count, int type, int operation, ncclComm_t comm, CUstream stream
) {
    if (operation != SUM) return fail(INVALID_ARGUMENT, "only ncclSum is there");
    return ask({Kind::ALL_REDUCE, from, to, count, comm, stream}, type);
}

EXPORTED int ncclAllGather(const void *from, void *to, size_t count, int type, ncclComm_t comm, CUstream stream) {
    return ask({Kind::ALL_GATHER, from, to, count, comm, stream}, type);
}
