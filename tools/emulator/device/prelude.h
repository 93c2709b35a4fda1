// In front of every kernel source: CUDA C++ as ordinary C++. Functions and types are those of NVIDIA's programming guide
// as far as gruff's kernels use them; __global__, __launch_bounds__ and __shared__ are left to the compiler. Nothing is included from the system, since compiling is what takes the time.
#pragma once

#include "../abi/kernels.h"

#define __device__
#define __host__
#define __constant__ static
#define __managed__ static
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __restrict__ __restrict
#define __grid_constant__

extern "C" {
// The linker's names for the ends of the section.
extern unsigned char __start_emulator_shared[] __attribute__((weak, visibility("hidden")));
extern unsigned char __stop_emulator_shared[] __attribute__((weak, visibility("hidden")));
}

#define EMULATOR_DYNAMIC 233472
// Indices of the running thread and block, and where dynamic shared memory lies.
static emulator::Index threadIdx, blockIdx, blockDim, gridDim;
static const emulator::Runtime *emulator_runtime;
alignas(1024) static unsigned char emulator_dynamic[EMULATOR_DYNAMIC];
constexpr int warpSize = 32;

#include "types.h"
#include "math.h"
#include "bits.h"
#include "warp.h"
#include "memory.h"
#include "table.h"
