// Graphs: work written down, made ready, and done as a whole.
#include <algorithm>
#include <cstring>

#include "state.h"

using namespace emulator;

static Work kernel_work(std::shared_ptr<Launch> launch) {
    return {CU_GRAPH_NODE_TYPE_KERNEL, launch, [launch] { return run_grid(*launch); }};
}

static CUresult launch_of(const CUDA_KERNEL_NODE_PARAMS &params, std::shared_ptr<Launch> &launch) {
    const unsigned grid[3] = {params.gridDimX, params.gridDimY, params.gridDimZ};
    const unsigned block[3] = {params.blockDimX, params.blockDimY, params.blockDimZ};
    if (params.extra || !params.func) return CUDA_ERROR_NOT_SUPPORTED;
    launch = std::make_shared<Launch>();
    return make_launch(*launch, params.func, grid, block, params.sharedMemBytes, params.kernelParams);
}

static void read_in(CUgraphExec exec, CUgraph graph) {
    exec->works.clear(), exec->after.clear(), exec->places.clear();
    for (const auto &node : graph->nodes) {
        std::vector<int> after;
        for (CUgraphNode before : node->after) after.push_back(exec->places.at(before));
        std::sort(after.begin(), after.end());
        exec->places[node.get()] = int(exec->works.size());
        exec->works.push_back(node->work);
        exec->after.push_back(std::move(after));
    }
}

EXPORTED CUresult cuGraphCreate(CUgraph *graph, unsigned) {
    ENTER();
    *graph = new CUgraph_st;
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuGraphDestroy(CUgraph graph) {
    ENTER();
    delete graph;
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuGraphAddKernelNode_v2(
    CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count, const CUDA_KERNEL_NODE_PARAMS *params
) {
    ENTER();
    std::shared_ptr<Launch> launch;
    TRY(launch_of(*params, launch));
    graph->nodes.push_back(std::make_unique<CUgraphNode_st>());
    *node = graph->nodes.back().get();
    (*node)->work = kernel_work(launch);
    (*node)->after.assign(after, after + count);
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count) {
    ENTER();
    if (nodes)
        for (size_t i = 0; i < *count; i++) nodes[i] = i < graph->nodes.size() ? graph->nodes[i].get() : nullptr;
    *count = nodes ? std::min(*count, graph->nodes.size()) : graph->nodes.size();
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType *type) {
    ENTER();
    *type = node->work.type;
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS *params) {
    ENTER();
    if (!node->work.launch) return CUDA_ERROR_INVALID_VALUE;
    Launch &launch = *node->work.launch;
    node->pointers.clear();
    for (auto &argument : launch.arguments) node->pointers.push_back(argument.data());
    std::memset(params, 0, sizeof *params);
    params->func = launch.function;
    params->gridDimX = launch.grid[0], params->gridDimY = launch.grid[1], params->gridDimZ = launch.grid[2];
    params->blockDimX = launch.block[0], params->blockDimY = launch.block[1], params->blockDimZ = launch.block[2];
    params->sharedMemBytes = launch.shared;
    params->kernelParams = node->pointers.data();
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuGraphKernelNodeSetParams_v2(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *params) {
    ENTER();
    if (!node->work.launch) return CUDA_ERROR_INVALID_VALUE;
    std::shared_ptr<Launch> launch;
    TRY(launch_of(*params, launch));
    node->work = kernel_work(launch);
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long) {
    ENTER();
    *exec = new CUgraphExec_st;
    read_in(*exec, graph);
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params) {
    params->hErrNode_out = nullptr;
    params->result_out = 0;
    return cuGraphInstantiateWithFlags(exec, graph, params->flags);
}

EXPORTED CUresult cuGraphExecDestroy(CUgraphExec exec) {
    ENTER();
    delete exec;
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuGraphUpload(CUgraphExec, CUstream) {
    ENTER();
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream) {
    ENTER();
    if (!known_stream(stream)) return CUDA_ERROR_INVALID_HANDLE;
    // A graph within a graph is a node of another type, which is not here.
    TRY(refuse_on(stream));
    TRY(launch_shall_fail());
    if (settings().idle) return CUDA_SUCCESS;
    // As it is now: later updates are for later launches.
    std::vector<std::function<CUresult()>> runs;
    for (const Work &work : exec->works) runs.push_back(work.run);
    return submit(stream, {CU_GRAPH_NODE_TYPE_EMPTY, nullptr, [runs] {
                               for (const auto &run : runs) TRY(run());
                               return CUDA_SUCCESS;
                           }});
}

EXPORTED CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *params) {
    ENTER();
    const auto place = exec->places.find(node);
    if (place == exec->places.end() || !exec->works[size_t(place->second)].launch) return CUDA_ERROR_INVALID_VALUE;
    std::shared_ptr<Launch> launch;
    TRY(launch_of(*params, launch));
    exec->works[size_t(place->second)] = kernel_work(launch);
    return CUDA_SUCCESS;
}

// Takes another graph of the same shape over.
EXPORTED CUresult cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo *info) {
    ENTER();
    *info = {CU_GRAPH_EXEC_UPDATE_SUCCESS, nullptr, nullptr};
    CUgraphExec_st next;
    read_in(&next, graph);
    if (next.works.size() != exec->works.size() || next.after != exec->after) {
        info->result = CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
        return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
    }
    for (size_t i = 0; i < next.works.size(); i++) {
        if (next.works[i].type == exec->works[i].type) continue;
        info->result = CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED;
        info->errorNode = graph->nodes[i].get();
        return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
    }
    // Nodes keep the names of the graph that it was made from.
    exec->works = std::move(next.works);
    return CUDA_SUCCESS;
}
