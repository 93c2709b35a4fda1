// Stacks that take turns on one thread of the operating system.
#pragma once

#include <cstddef>

namespace emulator {

struct Fiber {
    void *stack_pointer;
    unsigned char *pages;
    size_t bytes;
    // What it shall run next, for its main loop.
    int thread;
    // Where its main loop stood before it called a kernel that may be left in the middle.
    void *before[5];
};

// A fiber that runs `main` when first switched to; `main` never returns.
Fiber *make_fiber(void (*main)());

// Leaves the running stack for another, whose pointer is `to`; the running one's is put at `from`.
extern "C" void emulator_switch(void **from, void *to);

} // namespace emulator
