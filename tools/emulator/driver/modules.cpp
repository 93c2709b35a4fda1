// Modules: what the compiler made is a shared object behind a header with its length.
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <string>
#include <unistd.h>

#include "../abi/image.h"
#include "state.h"

using namespace emulator;

EXPORTED CUresult cuModuleLoadData(CUmodule *module, const void *image) {
    ENTER();
    TRY(refuse_during_capture());
    ImageHeader header;
    std::memcpy(&header, image, sizeof header);
    if (std::memcmp(header.magic, IMAGE_MAGIC, sizeof header.magic) != 0) {
        say("this is no code of the emulator's compiler: real NVRTC, or a kernel cache of a real card?");
        return CUDA_ERROR_INVALID_IMAGE;
    }
    if (header.build != EMULATOR_BUILD) return CUDA_ERROR_INVALID_IMAGE;
    // The loader takes equal names for one library, so each has a file of its own until it is loaded.
    const char *folder = std::getenv("TMPDIR");
    std::string path = std::string(folder && *folder ? folder : "/tmp") + "/cuda-emulator-XXXXXX";
    const int file = mkstemp(path.data());
    if (file < 0) return CUDA_ERROR_OUT_OF_MEMORY;
    const char *from = static_cast<const char *>(image) + sizeof header;
    for (size_t left = header.bytes; left > 0;) {
        const ssize_t wrote = write(file, from, left);
        if (wrote <= 0) break;
        from += wrote, left -= size_t(wrote);
    }
    close(file);
    void *library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    unlink(path.c_str());
    if (!library) {
        say("the module cannot be loaded: %s", dlerror());
        return CUDA_ERROR_INVALID_IMAGE;
    }
    using Entry = const Module *(*)();
    const auto entry = reinterpret_cast<Entry>(dlsym(library, "emulator_module"));
    if (!entry || entry()->build != EMULATOR_BUILD) {
        dlclose(library);
        return CUDA_ERROR_INVALID_IMAGE;
    }
    *module = new CUmod_st{library, entry(), {}};
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuModuleUnload(CUmodule module) {
    ENTER();
    TRY(refuse_during_capture());
    TRY(drain_all());
    dlclose(module->library);
    delete module;
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    ENTER();
    for (unsigned i = 0; i < module->table->count; i++) {
        const Kernel *kernel = &module->table->kernels[i];
        if (std::strcmp(kernel->name, name) != 0) continue;
        for (const auto &known : module->functions) {
            if (known->kernel != kernel) continue;
            *function = known.get();
            return CUDA_SUCCESS;
        }
        // More than 48 KiB must be asked for. How much static memory a single kernel of the module has is not known here.
        module->functions.emplace_back(new CUfunc_st{kernel, module, 48 * 1024});
        *function = module->functions.back().get();
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_NOT_FOUND;
}

EXPORTED CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute which, int value) {
    ENTER();
    if (which == CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT) return CUDA_SUCCESS;
    if (which != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) return CUDA_ERROR_INVALID_VALUE;
    if (value < 0 || value > settings().shared_bytes) return CUDA_ERROR_INVALID_VALUE;
    function->dynamic_limit = value;
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuFuncGetAttribute(int *value, CUfunction_attribute which, CUfunction function) {
    ENTER();
    switch (which) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
        *value = function->kernel->most_threads ? int(function->kernel->most_threads) : 1024;
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES:
        *value = int(function->module->table->fixed_end - function->module->table->fixed);
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: *value = function->dynamic_limit; return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_NUM_REGS: *value = 64; return CUDA_SUCCESS;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
}

// One block of so many threads a multiprocessor is as good a guess as any.
EXPORTED CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction function, int threads, size_t shared) {
    ENTER();
    const size_t fixed = size_t(function->module->table->fixed_end - function->module->table->fixed);
    const size_t by_shared = size_t(settings().shared_bytes) / (shared + fixed + 1024);
    const int by_threads = threads > 0 ? 2048 / threads : 0;
    *blocks = by_shared < size_t(by_threads) ? int(by_shared) : by_threads;
    return CUDA_SUCCESS;
}
