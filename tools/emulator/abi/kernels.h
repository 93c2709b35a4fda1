// What the driver and the kernels that the compiler made agree on. Included on both sides, so it includes nothing.
#pragma once

namespace emulator {

// threadIdx and the like; `lane` is the place in the warp, for threadIdx only.
struct Index {
    unsigned x, y, z, lane;
};

// What a lane brings to a meeting of its warp, or takes from it.
struct alignas(16) Slot {
    unsigned char bytes[64];
};

// Works on the slots of all 32 lanes once the last of a meeting has come.
using Combine = void (*)(Slot *slots);

// What lanes meet for; different operations do not meet each other.
enum Meeting : unsigned { SYNC, VOTE, SHUFFLE, REDUCE, MATCH, PRODUCT, LOAD };

// What __syncthreads and its relatives return.
enum Count : unsigned { NOTHING, HOW_MANY, ALL, ANY };

// The driver's services for a running kernel.
struct Runtime {
    // Waits for the lanes of the mask; the slots of all of them, valid until the next meeting.
    Slot *(*meet)(unsigned mask, unsigned what, const void *value, unsigned bytes, Combine combine);
    int (*barrier)(int predicate, unsigned count);
    // cp.async: `given` bytes are copied, zeros follow up to `bytes`.
    void (*copy)(void *shared, const void *global, int bytes, int given);
    void (*copies_made)();
    void (*copies_wait)(int left);
    // griddepcontrol.wait
    void (*wait_for_kernel_before)();
    void (*fault)(const char *what);
    // Bytes of dynamic shared memory of this launch.
    unsigned (*shared_bytes)();
};

struct Kernel {
    const char *name;
    // Calls the kernel for one thread.
    void (*call)(void *const *arguments);
    unsigned arguments;
    const unsigned *sizes;
    // From __launch_bounds__; 0 without.
    unsigned most_threads;
};

// What a compiled module is to the driver; the function `emulator_module` of it returns this.
struct Module {
    // The build of the compiler that made it.
    unsigned long long build;
    const Runtime **runtime;
    Index *thread, *block, *block_size, *grid_size;
    // Room for dynamic shared memory.
    unsigned char *dynamic;
    unsigned dynamic_bytes;
    // Static shared memory.
    unsigned char *fixed, *fixed_end;
    const Kernel *kernels;
    unsigned count;
};

} // namespace emulator
