// Mixture of experts: gathering by expert, combination. Products are those of `matmul/cuda`.
#include "common.cuh"

// Lists the rows [0, slots) of the output by expert, and cuts them into batches of up to `columns` rows of one expert each:
// (expert, start in the order, count, 0). Batches left over have count 0; so have rows whose id is no expert, which
// are in none. One block of threads. Which row of a batch is where depends on timing; what is computed for it does not.
extern "C" __global__ void gather(const int *ids, i64 id_stride, int used, int slots, int experts, int columns, int *order, int4 *batches, int most) {
    in_turn();
    extern __shared__ int counts[];
    int *starts = counts + experts, *firsts = starts + experts;
    for (int e = threadIdx.x; e < experts; e += blockDim.x) counts[e] = 0;
    for (int b = threadIdx.x; b < most; b += blockDim.x) batches[b] = make_int4(0, 0, 0, 0);
    __syncthreads();
    for (int s = threadIdx.x; s < slots; s += blockDim.x) {
        const int expert = ids[s / used * id_stride + s % used];
        if ((u32)expert < (u32)experts) atomicAdd(counts + expert, 1);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        int start = 0, first = 0;
        for (int e = 0; e < experts; e++) {
            starts[e] = start, firsts[e] = first;
            start += counts[e], first += (counts[e] + columns - 1) / columns;
        }
    }
    __syncthreads();
    for (int e = threadIdx.x; e < experts; e += blockDim.x) {
        for (int i = 0; i * columns < counts[e]; i++) {
            batches[firsts[e] + i] = make_int4(e, starts[e] + i * columns, min(columns, counts[e] - i * columns), 0);
        }
    }
    __syncthreads();
    for (int s = threadIdx.x; s < slots; s += blockDim.x) {
        const int expert = ids[s / used * id_stride + s % used];
        if ((u32)expert < (u32)experts) order[atomicAdd(starts + expert, 1)] = s;
    }
}

// out[t] = sum over j, in order, of weights[t, j] * products[t * used + j]; all with rows some values apart.
extern "C" __global__ void combine(
    const float *products, const float *weights, i64 weight_stride, const int *ids, i64 id_stride, int used, int experts, int width, float *out,
    i64 out_stride
) {
    in_turn();
    const int token = blockIdx.y;
    weights += token * weight_stride, ids += token * id_stride;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < width; i += gridDim.x * blockDim.x) {
        float sum = 0.0f;
        for (int j = 0; j < used; j++) {
            // What has no expert has no product: the fault shows instead of vanishing.
            const bool sound = (u32)ids[j] < (u32)experts;
            const float product = sound ? products[((i64)token * used + j) * width + i] : __int_as_float(0x7fffffff);
            sum += weights[j] * product;
        }
        out[token * out_stride + i] = sum;
    }
}
