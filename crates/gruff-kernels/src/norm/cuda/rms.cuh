// What all kernels of norms share.
#pragma once

// The factor of a row whose squares have this sum.
static __device__ __forceinline__ float rms_factor(float squares, int width, float eps) {
    return 1.0f / sqrtf(squares / (float)width + eps);
}
