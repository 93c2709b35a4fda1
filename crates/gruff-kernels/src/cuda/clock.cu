// What the card's clock needs besides events.
#include "common.cuh"

// Holds back what stands behind it on the stream until the host says a number that is no smaller, or time is up: so that
// kernels which are launched one by one run as closely as in a recording.
extern "C" __global__ void hold(const volatile u32 *said, u32 number, u64 most_nanoseconds) {
    u64 began = ptx::nanoseconds();
    while ((int)(*said - number) < 0 && ptx::nanoseconds() - began < most_nanoseconds) {}
}

// Does nothing: what a launch takes by itself.
extern "C" __global__ void nothing() {}
