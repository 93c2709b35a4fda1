// How a pair of dimensions turns: the same roundings in every kernel that does it.

#pragma once

#include "common.cuh"

static __device__ __forceinline__ float2 turned(float a, float b, float cosine, float sine) {
    return make_float2(fmaf(a, cosine, -__fmul_rn(b, sine)), fmaf(a, sine, __fmul_rn(b, cosine)));
}
