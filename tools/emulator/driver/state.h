// What the parts of the driver know of each other. One lock, taken by every entry point, guards all of it.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "../abi/kernels.h"
#include "api.h"

namespace emulator {

// ---- settings.cpp: what the environment says.

enum class Order { FORWARD, BACKWARD, RANDOM };

struct Settings {
    int devices, major, minor, multiprocessors, driver, shared_bytes;
    size_t memory_bytes;
    Order order;
    unsigned long long seed;
    // Work waits until something asks for its results.
    bool late;
    bool trace;
    // Kernels do nothing: what is left is what the program does.
    bool idle;
};
const Settings &settings();

// ---- faults.cpp: faults that were asked for, and those that happened.

// Whether an allocation of so many bytes shall fail.
bool allocation_shall_fail(size_t bytes);
// What the next launch shall fail with at once, and what it shall fail with while it runs.
CUresult launch_shall_fail();
CUresult kernel_shall_fail();
// An error that a context keeps; every later call returns it.
CUresult lasting_error();
void set_lasting_error(CUresult error);
// A line on stderr.
void say(const char *format, ...) __attribute__((format(printf, 1, 2)));

// ---- memory.cpp

struct Allocation {
    unsigned char *begin;
    size_t bytes;
    // Whole pages with what lies around it, between two that nobody may touch.
    unsigned char *pages;
    size_t page_bytes;
    // Of each page in between, whether the host was the last to write there. Such a page is read-only: who writes to it next
    // is seen.
    std::vector<bool> from_host;
};
const Allocation *allocation_at(uintptr_t address);
std::string describe(uintptr_t address);
// Copies to device memory, as the host.
void write_as_host(void *to, const void *from, size_t bytes);
// For a fault of the processor: whether it was the first write of somebody else to what the host had copied. Then the page is
// that one's from now on, and the write can be made again.
bool takes_over(uintptr_t address);
// While it is so, nobody writes to device memory, and nobody reads but what the host has copied there and nobody has written
// to since.
void forbid_memory(bool forbidden);
// Says what lies damaged around allocations; whether anything does.
bool guards_broken(const char *behind);
bool is_pinned(const void *host);
size_t used_bytes();
bool device_range(CUdeviceptr pointer, size_t bytes);

// ---- modules.cpp

} // namespace emulator

struct CUfunc_st {
    const emulator::Kernel *kernel;
    CUmodule module;
    int dynamic_limit;
    // Launches that could begin before the end of the kernel in front of them.
    unsigned long long early = 0;
};

struct CUmod_st {
    void *library;
    const emulator::Module *table;
    std::vector<std::unique_ptr<CUfunc_st>> functions;
};

struct CUctx_st {
    int device;
};

namespace emulator {

// ---- grid.cpp

// Has faults of the processor come here.
void watch_faults();

// A launch with its own copy of the arguments.
struct Launch {
    CUfunction function;
    unsigned grid[3], block[3], shared;
    std::vector<std::vector<unsigned char>> arguments;
    // May begin before the kernel in front of it has ended.
    bool early = false;
};
// Runs it to the end. An error of it lasts.
CUresult run_grid(const Launch &launch);
// Checks a launch and copies its arguments.
CUresult make_launch(
    Launch &launch, CUfunction function, const unsigned *grid, const unsigned *block, unsigned shared, void **arguments
);

// ---- streams.cpp: work in order.

struct Work {
    CUgraphNodeType type;
    // Bytes of kernel arguments and the like for updates of graphs.
    std::shared_ptr<Launch> launch;
    std::function<CUresult()> run;
};

struct Node;
struct Capture;

} // namespace emulator

struct CUevent_st {
    // How far its stream must have come; 0 when never recorded.
    CUstream stream = nullptr;
    unsigned long long mark = 0;
    double time = 0;
    bool timed = true;
    std::shared_ptr<emulator::Capture> capture;
    std::vector<CUgraphNode> nodes;
};

struct CUstream_st {
    bool blocking = true;
    std::deque<std::function<CUresult()>> queue;
    // Entries that were put in and taken out since the beginning.
    unsigned long long put = 0, done = 0;
    std::shared_ptr<emulator::Capture> capture;
    // What the next node of the capture depends on.
    std::vector<CUgraphNode> last;
};

struct CUgraphNode_st {
    emulator::Work work;
    std::vector<CUgraphNode> after;
    std::vector<void *> pointers;
};

struct CUgraph_st {
    // In the order of creation: what a node depends on stands before it.
    std::vector<std::unique_ptr<CUgraphNode_st>> nodes;
};

struct CUgraphExec_st {
    std::vector<emulator::Work> works;
    std::vector<std::vector<int>> after;
    // The nodes that it was made from.
    std::map<CUgraphNode, int> places;
};

namespace emulator {

struct Capture {
    CUgraph graph;
    CUstream origin;
    CUstreamCaptureMode mode;
    unsigned long long thread;
    bool valid = true;
    std::vector<CUstream> streams;
};

// Puts work on a stream, or into the graph that the stream captures.
CUresult submit(CUstream stream, Work work);
CUresult drain(CUstream stream, unsigned long long mark);
CUresult drain_all();
bool known_stream(CUstream &stream);

// ---- capture.cpp

// For calls that a capture forbids: what the call fails with, and the capture is spoilt.
CUresult refuse_during_capture();
CUresult refuse_on(CUstream stream);
CUresult put_into_graph(CUstream stream, Work work);

// ---- context

CUresult enter();
extern std::recursive_mutex lock;

} // namespace emulator

// What every entry point begins with.
#define ENTER()                                                                                                        \
    std::lock_guard<std::recursive_mutex> entered(emulator::lock);                                                     \
    if (CUresult refused = emulator::enter(); refused != CUDA_SUCCESS) return refused
#define TRY(call)                                                                                                      \
    if (CUresult failed = (call); failed != CUDA_SUCCESS) return failed
