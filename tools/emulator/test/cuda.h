// Driver and compiler as a test sees them: loaded by name, every error a fault of the test unless it is expected.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "../driver/api.h"

extern "C" {
CUresult cuInit(unsigned);
CUresult cuDevicePrimaryCtxRetain(CUcontext *, CUdevice);
CUresult cuCtxSetCurrent(CUcontext);
CUresult cuCtxSynchronize();
CUresult cuMemAlloc_v2(CUdeviceptr *, size_t);
CUresult cuMemFree_v2(CUdeviceptr);
CUresult cuMemHostAlloc(void **, size_t, unsigned);
CUresult cuMemcpyHtoD_v2(CUdeviceptr, const void *, size_t);
CUresult cuMemcpyDtoH_v2(void *, CUdeviceptr, size_t);
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr, const void *, size_t, CUstream);
CUresult cuMemcpyDtoHAsync_v2(void *, CUdeviceptr, size_t, CUstream);
CUresult cuMemsetD32Async(CUdeviceptr, unsigned, size_t, CUstream);
CUresult cuModuleLoadData(CUmodule *, const void *);
CUresult cuModuleGetFunction(CUfunction *, CUmodule, const char *);
CUresult cuFuncSetAttribute(CUfunction, CUfunction_attribute, int);
CUresult cuLaunchKernel(
    CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **
);
CUresult cuLaunchKernelEx(const CUlaunchConfig *, CUfunction, void **, void **);
CUresult cuStreamCreate(CUstream *, unsigned);
CUresult cuStreamSynchronize(CUstream);
CUresult cuStreamWaitEvent(CUstream, CUevent, unsigned);
CUresult cuEventCreate(CUevent *, unsigned);
CUresult cuEventRecord(CUevent, CUstream);
CUresult cuEventQuery(CUevent);
CUresult cuStreamBeginCapture_v2(CUstream, CUstreamCaptureMode);
CUresult cuStreamEndCapture(CUstream, CUgraph *);
CUresult cuGraphInstantiateWithFlags(CUgraphExec *, CUgraph, unsigned long long);
CUresult cuGraphLaunch(CUgraphExec, CUstream);
CUresult cuGraphGetNodes(CUgraph, CUgraphNode *, size_t *);
CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode, CUDA_KERNEL_NODE_PARAMS *);
CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec, CUgraphNode, const CUDA_KERNEL_NODE_PARAMS *);
CUresult cuGraphExecUpdate_v2(CUgraphExec, CUgraph, CUgraphExecUpdateResultInfo *);
int nvrtcCreateProgram(void **, const char *, const char *, int, const char *const *, const char *const *);
int nvrtcCompileProgram(void *, int, const char *const *);
int nvrtcGetCUBINSize(void *, size_t *);
int nvrtcGetCUBIN(void *, char *);
int nvrtcGetProgramLogSize(void *, size_t *);
int nvrtcGetProgramLog(void *, char *);
}

[[noreturn]] inline void give_up(const std::string &why) {
    std::printf("    %s\n", why.c_str());
    std::fflush(stdout);
    std::_Exit(1);
}

#define EXPECT(call, code)                                                                                             \
    if (const int code_ = int(call); code_ != int(code))                                                                 \
    give_up(std::string(#call " gives ") + std::to_string(code_) + ", not " #code)
#define OK(call) EXPECT(call, CUDA_SUCCESS)
#define CHECK(condition)                                                                                               \
    if (!(condition)) give_up("not so: " #condition)

// The folder of gruff's headers for kernels.
extern std::string headers_folder;

inline std::string read_file(const std::string &path) {
    std::ifstream file(path);
    if (!file) give_up("cannot read " + path);
    std::stringstream all;
    all << file.rdbuf();
    return all.str();
}

// A context, a stream, and a source with its kernels.
struct Card {
    CUcontext context;
    CUstream stream;
    CUmodule module;

    explicit Card(const std::string &code) {
        OK(cuInit(0));
        OK(cuDevicePrimaryCtxRetain(&context, 0));
        OK(cuCtxSetCurrent(context));
        OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
        const std::string common = read_file(headers_folder + "/common.cuh"), ptx = read_file(headers_folder + "/ptx.cuh");
        const char *texts[] = {common.c_str(), ptx.c_str()}, *names[] = {"common.cuh", "ptx.cuh"};
        const std::string source = "#include \"common.cuh\"\n" + code;
        void *program;
        EXPECT(nvrtcCreateProgram(&program, source.c_str(), "test.cu", 2, texts, names), 0);
        const char *options[] = {"--gpu-architecture=sm_90a", "--std=c++17", "--define-macro=SIZE=64"};
        if (nvrtcCompileProgram(program, 3, options) != 0) {
            size_t bytes;
            nvrtcGetProgramLogSize(program, &bytes);
            std::string log(bytes, ' ');
            nvrtcGetProgramLog(program, log.data());
            give_up(log);
        }
        size_t bytes;
        EXPECT(nvrtcGetCUBINSize(program, &bytes), 0);
        std::vector<char> image(bytes);
        EXPECT(nvrtcGetCUBIN(program, image.data()), 0);
        OK(cuModuleLoadData(&module, image.data()));
    }

    CUfunction kernel(const char *name) const {
        CUfunction function;
        OK(cuModuleGetFunction(&function, module, name));
        return function;
    }

    // One block.
    template <class... A> CUresult launch(const char *name, unsigned threads, unsigned shared, A... arguments) const {
        void *pointers[] = {&arguments..., nullptr};
        return cuLaunchKernel(kernel(name), 1, 1, 1, threads, 1, 1, shared, stream, pointers, nullptr);
    }
};

// Device memory.
template <class T> struct Values {
    CUdeviceptr at;
    size_t count;

    explicit Values(size_t count) : count(count) { OK(cuMemAlloc_v2(&at, count * sizeof(T))); }
    explicit Values(const std::vector<T> &from) : Values(from.size()) { OK(cuMemcpyHtoD_v2(at, from.data(), count * sizeof(T))); }
    std::vector<T> get(const Card &card) const {
        OK(cuStreamSynchronize(card.stream));
        std::vector<T> all(count);
        OK(cuMemcpyDtoH_v2(all.data(), at, count * sizeof(T)));
        return all;
    }
};

// A test runs in a process of its own, with these settings.
struct Test {
    const char *name;
    std::vector<std::pair<const char *, const char *>> settings;
    std::function<void()> run;
};
std::vector<Test> &tests();

struct Listed {
    Listed(const char *name, std::vector<std::pair<const char *, const char *>> settings, std::function<void()> run) {
        tests().push_back({name, std::move(settings), std::move(run)});
    }
};
#define TEST(name, ...)                                                                                                \
    static void name();                                                                                                \
    static const Listed listed_##name(#name, {__VA_ARGS__}, name);                                                     \
    static void name()
