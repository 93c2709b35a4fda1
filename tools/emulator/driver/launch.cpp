// Launches.
#include <cstring>

#include "state.h"

using namespace emulator;

static CUresult launch(CUfunction function, const unsigned *grid, const unsigned *block, unsigned shared, CUstream stream, void **arguments, bool early) {
    if (!known_stream(stream)) return CUDA_ERROR_INVALID_HANDLE;
    auto made = std::make_shared<Launch>();
    TRY(make_launch(*made, function, grid, block, shared, arguments));
    made->early = early;
    if (!stream->capture) TRY(launch_shall_fail());
    return submit(stream, {CU_GRAPH_NODE_TYPE_KERNEL, made, [made] { return run_grid(*made); }});
}

EXPORTED CUresult cuLaunchKernel(
    CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y, unsigned block_z,
    unsigned shared, CUstream stream, void **arguments, void **extra
) {
    ENTER();
    if (extra) return CUDA_ERROR_NOT_SUPPORTED;
    const unsigned grid[3] = {grid_x, grid_y, grid_z}, block[3] = {block_x, block_y, block_z};
    return launch(function, grid, block, shared, stream, arguments, false);
}

// Of the attributes there is the one that lets a kernel begin before the end of the one in front of it, which changes nothing
// where kernels run one after the other: what it does too early is looked for (grid.cpp).
EXPORTED CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **arguments, void **extra) {
    ENTER();
    if (extra) return CUDA_ERROR_NOT_SUPPORTED;
    constexpr int PROGRAMMATIC_STREAM_SERIALIZATION = 6;
    bool early = false;
    for (unsigned i = 0; i < config->numAttrs; i++) {
        if (config->attrs[i].id != PROGRAMMATIC_STREAM_SERIALIZATION || settings().major < 9) return CUDA_ERROR_NOT_SUPPORTED;
        int allowed;
        std::memcpy(&allowed, config->attrs[i].value, sizeof allowed);
        early = allowed != 0;
    }
    const unsigned grid[3] = {config->gridDimX, config->gridDimY, config->gridDimZ};
    const unsigned block[3] = {config->blockDimX, config->blockDimY, config->blockDimZ};
    return launch(function, grid, block, config->sharedMemBytes, config->hStream, arguments, early);
}
