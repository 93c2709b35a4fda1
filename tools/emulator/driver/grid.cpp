// Runs a launch: block after block, the threads of a block as fibers.
//
// A thread runs until it meets others: at a barrier of the block, or where the lanes of a warp exchange values. Which one
// runs next is what `Order` says; a kernel whose result depends on it lacks a barrier. Threads that never wait run one
// after the other on the same stack.
#include <csignal>
#include <cstdio>
#include <cstring>
#include <ucontext.h>

#include "fibers.h"
#include "state.h"

namespace emulator {

constexpr int MOST = 1024, WARPS = MOST / 32;
constexpr unsigned char FRESH = 0xff, MARK = 0xa5;
constexpr unsigned BORDER = 256;

struct Copy {
    void *to;
    const void *from;
    int bytes, given;
};

struct Thread {
    // Null before its first step.
    Fiber *fiber;
    bool done, at_barrier;
    // cp.async: copies, and where each group of them ends.
    std::vector<Copy> copies;
    std::vector<unsigned> groups;
};

// Lanes of a warp that wait for each other.
struct Gathering {
    unsigned mask, what, arrived, round;
    Slot slots[2][32];
};

struct Warp {
    unsigned ready;
    // One for each mask in use. They stay where they are, since lanes read of them later.
    std::deque<Gathering> gatherings;
};

static struct Grid {
    const Launch *launch;
    const Module *module;
    std::vector<void *> arguments;
    Index at, block_size;
    int threads;
    Thread all[MOST];
    Warp warps[WARPS];
    unsigned ready_warps;
    int current, warp;
    // Threads of the block that have not ended, and those at the barrier.
    int live, arrived;
    int truths[2], comers[2];
    unsigned barrier_round;
    std::vector<Fiber *> spare;
    void *outside;
    CUresult result;
    bool running;
    // Threads are left where they wait for the kernel before.
    bool trying;
    unsigned long long random;
} grid;

static unsigned random_number() {
    grid.random ^= grid.random << 13;
    grid.random ^= grid.random >> 7;
    grid.random ^= grid.random << 17;
    return unsigned(grid.random >> 32);
}

// A set bit, as the order wants it.
static int choose(unsigned bits) {
    switch (settings().order) {
    case Order::FORWARD: return __builtin_ctz(bits);
    case Order::BACKWARD: return 31 - __builtin_clz(bits);
    case Order::RANDOM: break;
    }
    const int turn = int(random_number() & 31);
    const unsigned turned = bits >> turn | (turn ? bits << (32 - turn) : 0);
    return (__builtin_ctz(turned) + turn) & 31;
}

static void make_ready(int thread) {
    grid.warps[thread / 32].ready |= 1u << (thread & 31);
    grid.ready_warps |= 1u << (thread / 32);
}

// The next thread, no longer ready; -1 if none is.
static int pick() {
    if (grid.ready_warps == 0) return -1;
    // A warp goes on as long as it can, unless chance decides.
    if (settings().order == Order::RANDOM || (grid.ready_warps >> grid.warp & 1) == 0) grid.warp = choose(grid.ready_warps);
    Warp &warp = grid.warps[grid.warp];
    const int lane = choose(warp.ready);
    warp.ready &= ~(1u << lane);
    if (warp.ready == 0) grid.ready_warps &= ~(1u << grid.warp);
    return grid.warp * 32 + lane;
}

static void enter_thread(int thread) {
    grid.current = thread;
    const unsigned x = grid.block_size.x, y = grid.block_size.y;
    const unsigned t = unsigned(thread);
    *grid.module->thread = {t % x, t / x % y, t / (x * y), t & 31};
}

static void leave_block() {
    void *nowhere;
    emulator_switch(&nowhere, grid.outside);
}

static void fail(CUresult error) {
    grid.result = error;
    leave_block();
}

static std::string place() {
    char line[256];
    const Index &b = grid.at, &t = *grid.module->thread;
    std::snprintf(
        line, sizeof line, "kernel %s, block (%u, %u, %u), thread (%u, %u, %u)", grid.launch->function->kernel->name, b.x, b.y, b.z, t.x,
        t.y, t.z
    );
    return line;
}

static void report_standstill() {
    say("%s waits for ever:", place().c_str());
    say("  %d of %d threads that have not ended are at a barrier of the block", grid.arrived, grid.live);
    for (int w = 0; w < WARPS; w++)
        for (const Gathering &at : grid.warps[w].gatherings)
            if (at.arrived) say("  warp %d: lanes %08x of %08x have come to an exchange", w, at.arrived, at.mask);
}

static void fiber_main();

// Goes on with another thread; returns when it is the caller's turn again.
static void wait_for_turn() {
    const int self = grid.current, next = pick();
    if (next == self) return;
    if (next < 0) {
        report_standstill();
        fail(CUDA_ERROR_LAUNCH_FAILED);
    }
    Fiber *fiber = grid.all[next].fiber;
    if (!fiber) {
        if (grid.spare.empty()) grid.spare.push_back(make_fiber(fiber_main));
        fiber = grid.spare.back();
        grid.spare.pop_back();
        grid.all[next].fiber = fiber;
        fiber->thread = next;
    }
    enter_thread(next);
    emulator_switch(&grid.all[self].fiber->stack_pointer, fiber->stack_pointer);
}

// cp.async is done when it is waited for, so that whoever looks earlier sees it missing; when chance decides, sometimes at
// once, so that whoever still needs what was there sees it gone.
static void do_copy(const Copy &copy) {
    std::memcpy(copy.to, copy.from, size_t(copy.given));
    std::memset(static_cast<char *>(copy.to) + copy.given, 0, size_t(copy.bytes - copy.given));
}

static void do_copies(Thread &thread, size_t count) {
    for (size_t i = 0; i < count; i++) do_copy(thread.copies[i]);
    thread.copies.erase(thread.copies.begin(), thread.copies.begin() + ptrdiff_t(count));
}

static void release_barrier() {
    grid.arrived = 0;
    for (int t = 0; t < grid.threads; t++) {
        if (!grid.all[t].at_barrier) continue;
        grid.all[t].at_barrier = false;
        make_ready(t);
    }
    grid.barrier_round++;
    grid.truths[grid.barrier_round & 1] = grid.comers[grid.barrier_round & 1] = 0;
}

static void end_thread() {
    Thread &thread = grid.all[grid.current];
    if (!thread.copies.empty()) do_copies(thread, thread.copies.size());
    thread.groups.clear();
    thread.done = true;
    grid.live--;
    if (grid.arrived > 0 && grid.arrived == grid.live) release_barrier();
}

static void fault(const char *what);

// Runs a thread up to where it waits for the kernel before.
static void __attribute__((noinline)) try_thread(Fiber *self) {
    if (__builtin_setjmp(self->before)) return;
    grid.launch->function->kernel->call(grid.arguments.data());
    fault("it was to wait for the kernel before, and ends without it");
}

static void wait_for_kernel_before() {
    if (grid.trying) __builtin_longjmp(grid.all[grid.current].fiber->before, 1);
}

// Runs threads one after the other. A thread that has begun elsewhere is switched to; this stack is spare then.
static void fiber_main() {
    for (;;) {
        Fiber *self = grid.all[grid.current].fiber;
        if (grid.trying) try_thread(self);
        else grid.launch->function->kernel->call(grid.arguments.data());
        end_thread();
        const int next = pick();
        if (next < 0) {
            if (grid.live > 0) report_standstill(), grid.result = CUDA_ERROR_LAUNCH_FAILED;
            grid.spare.push_back(self);
            emulator_switch(&self->stack_pointer, grid.outside);
        } else if (!grid.all[next].fiber) {
            grid.all[next].fiber = self;
            self->thread = next;
            enter_thread(next);
        } else {
            grid.spare.push_back(self);
            enter_thread(next);
            emulator_switch(&self->stack_pointer, grid.all[next].fiber->stack_pointer);
        }
    }
}

// ---- What kernels call.

static Gathering &gathering_of(Warp &warp, unsigned mask) {
    for (Gathering &at : warp.gatherings)
        if (at.mask == mask) return at;
    warp.gatherings.emplace_back();
    warp.gatherings.back().mask = mask;
    return warp.gatherings.back();
}

static void fault(const char *what) {
    say("%s: %s", place().c_str(), what);
    fail(CUDA_ERROR_LAUNCH_FAILED);
}

static Slot *meet(unsigned mask, unsigned what, const void *value, unsigned bytes, Combine combine) {
    const unsigned lane = 1u << (grid.current & 31);
    if ((mask & lane) == 0) fault("a lane is not in the mask that it names");
    Warp &warp = grid.warps[grid.current / 32];
    Gathering &at = gathering_of(warp, mask);
    if (at.arrived == 0) at.what = what;
    if (at.what != what) fault("lanes of a warp meet in different operations");
    Slot *slots = at.slots[at.round & 1];
    if (bytes) std::memcpy(slots + (grid.current & 31), value, bytes);
    at.arrived |= lane;
    if (at.arrived != mask) {
        wait_for_turn();
        return slots;
    }
    if (combine) combine(slots);
    at.arrived = 0;
    at.round++;
    // All of them may go on; which one does first is for the order to say.
    for (unsigned rest = mask; rest; rest &= rest - 1) make_ready(grid.current / 32 * 32 + __builtin_ctz(rest));
    wait_for_turn();
    return slots;
}

static int barrier(int predicate, unsigned count) {
    const unsigned round = grid.barrier_round & 1;
    grid.truths[round] += predicate != 0;
    grid.comers[round]++;
    grid.all[grid.current].at_barrier = true;
    if (++grid.arrived == grid.live) release_barrier();
    wait_for_turn();
    switch (count) {
    case HOW_MANY: return grid.truths[round];
    case ALL: return grid.truths[round] == grid.comers[round];
    case ANY: return grid.truths[round] > 0;
    default: return 0;
    }
}

static void copy(void *to, const void *from, int bytes, int given) {
    if (uintptr_t(to) % unsigned(bytes) != 0 || uintptr_t(from) % unsigned(bytes) != 0) fault("cp.async: a misaligned address");
    if (given < 0 || given > bytes) fault("cp.async: more bytes are given than copied");
    const Copy copy = {to, from, bytes, given};
    if (settings().order == Order::RANDOM && (random_number() & 1)) do_copy(copy);
    else grid.all[grid.current].copies.push_back(copy);
}

static void copies_made() {
    Thread &thread = grid.all[grid.current];
    thread.groups.push_back(unsigned(thread.copies.size()));
}

static void copies_wait(int left) {
    Thread &thread = grid.all[grid.current];
    if (int(thread.groups.size()) <= left) return;
    const size_t finished = thread.groups.size() - size_t(left);
    const unsigned count = thread.groups[finished - 1];
    do_copies(thread, count);
    thread.groups.erase(thread.groups.begin(), thread.groups.begin() + ptrdiff_t(finished));
    for (unsigned &end : thread.groups) end -= count;
}

static unsigned shared_bytes() { return grid.launch->shared; }

static const Runtime RUNTIME = {meet, barrier, copy, copies_made, copies_wait, wait_for_kernel_before, fault, shared_bytes};

// ---- Faults of the processor while a kernel runs.

static struct sigaction before[NSIG];
static int fault_number;
static uintptr_t fault_address;

static void report_fault() {
    CUresult error = CUDA_ERROR_ILLEGAL_ADDRESS;
    switch (fault_number) {
    case SIGILL:
        // The compiler's own checks end in an illegal instruction.
        say("%s: a misaligned access, an index outside of its array, or a shift by too much", place().c_str());
        error = CUDA_ERROR_MISALIGNED_ADDRESS;
        break;
    case SIGFPE:
        say("%s: an integer is divided by zero", place().c_str());
        error = CUDA_ERROR_LAUNCH_FAILED;
        break;
    default:
        say("%s: an access to %s%s", place().c_str(), describe(fault_address).c_str(),
            grid.trying ? ", before it has waited for the kernel before" : "");
    }
    fail(error);
}

static void on_signal(int number, siginfo_t *about, void *context) {
    if (number == SIGSEGV && !grid.trying && takes_over(uintptr_t(about->si_addr))) return;
    if (!grid.running) {
        sigaction(number, &before[number], nullptr);
        return;
    }
    fault_number = number;
    fault_address = uintptr_t(about->si_addr);
    // Goes on in `report_fault`, as if it had been called at the top of the fiber's stack: the kernel is over, and the stack
    // may be full.
    ucontext_t *at = static_cast<ucontext_t *>(context);
    const Fiber *fiber = grid.all[grid.current].fiber;
    at->uc_mcontext.gregs[REG_RSP] = greg_t(reinterpret_cast<uintptr_t>(fiber->pages + fiber->bytes - 64) - 8);
    at->uc_mcontext.gregs[REG_RIP] = greg_t(reinterpret_cast<uintptr_t>(report_fault));
}

void watch_faults() {
    static bool once = false;
    if (!once) {
        once = true;
        struct sigaction action;
        std::memset(&action, 0, sizeof action);
        action.sa_sigaction = on_signal;
        action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
        for (int number : {SIGSEGV, SIGBUS, SIGILL, SIGFPE}) sigaction(number, &action, &before[number]);
    }
    // A fault may be that of a full stack, so the handler needs another.
    static thread_local unsigned char other[32 * 1024];
    stack_t now;
    sigaltstack(nullptr, &now);
    if (!(now.ss_flags & SS_DISABLE)) return;
    stack_t stack;
    std::memset(&stack, 0, sizeof stack);
    stack.ss_sp = other;
    stack.ss_size = sizeof other;
    sigaltstack(&stack, nullptr);
}

// ---- A block, and all of them.

static CUresult run_block() {
    const Module &module = *grid.module;
    std::memset(module.fixed, FRESH, size_t(module.fixed_end - module.fixed));
    std::memset(module.dynamic, FRESH, grid.launch->shared);
    std::memset(module.dynamic + grid.launch->shared, MARK, BORDER);
    *module.block = grid.at;
    grid.ready_warps = 0;
    for (int w = 0; w * 32 < grid.threads; w++) {
        grid.warps[w].ready = 0;
        for (Gathering &at : grid.warps[w].gatherings) at.arrived = 0;
    }
    for (int t = 0; t < grid.threads; t++) {
        Thread &thread = grid.all[t];
        thread.fiber = nullptr;
        thread.done = thread.at_barrier = false;
        thread.copies.clear(), thread.groups.clear();
        make_ready(t);
    }
    grid.live = grid.threads, grid.arrived = 0, grid.barrier_round = 0;
    grid.truths[0] = grid.truths[1] = grid.comers[0] = grid.comers[1] = 0;
    grid.result = CUDA_SUCCESS;
    grid.warp = 0;
    const int first = pick();
    if (grid.spare.empty()) grid.spare.push_back(make_fiber(fiber_main));
    Fiber *fiber = grid.spare.back();
    grid.spare.pop_back();
    grid.all[first].fiber = fiber;
    enter_thread(first);
    grid.running = true;
    emulator_switch(&grid.outside, fiber->stack_pointer);
    grid.running = false;
    if (grid.result != CUDA_SUCCESS) {
        // Stacks that were left in the middle are of no use any more.
        grid.spare.clear();
        return grid.result;
    }
    for (unsigned i = 0; i < BORDER; i++) {
        if (module.dynamic[grid.launch->shared + i] == MARK) continue;
        say("%s: something was written behind the %u bytes of shared memory", place().c_str(), grid.launch->shared);
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    }
    return CUDA_SUCCESS;
}

static CUresult run_blocks() {
    const unsigned *size = grid.launch->grid;
    const unsigned long long blocks = (unsigned long long)size[0] * size[1] * size[2];
    // When chance decides, blocks begin anywhere and go round, in either direction.
    const bool random = settings().order == Order::RANDOM;
    const unsigned long long first = random ? random_number() % blocks : 0;
    const bool down = settings().order == Order::BACKWARD || (random && (random_number() & 1));
    for (unsigned long long i = 0; i < blocks; i++) {
        const unsigned long long turned = (first + i) % blocks, block = down ? blocks - 1 - turned : turned;
        grid.at = {unsigned(block % size[0]), unsigned(block / size[0] % size[1]), unsigned(block / size[0] / size[1]), 0};
        if (CUresult error = run_block(); error != CUDA_SUCCESS) return error;
    }
    return CUDA_SUCCESS;
}

// What a kernel that may begin early does before it waits must not touch what kernels have made: runs all its threads up to there
// with that memory out of reach. Not each time, as forbidding takes long.
static CUresult try_early() {
    constexpr unsigned long long ALWAYS = 16;
    const unsigned long long count = grid.launch->function->early++;
    if (count >= ALWAYS && count % ALWAYS != 0) return CUDA_SUCCESS;
    forbid_memory(true);
    grid.trying = true;
    const CUresult result = run_blocks();
    grid.trying = false;
    forbid_memory(false);
    return result;
}

CUresult run_grid(const Launch &launch) {
    if (settings().idle) return CUDA_SUCCESS;
    if (CUresult error = kernel_shall_fail(); error != CUDA_SUCCESS) {
        set_lasting_error(error);
        return error;
    }
    watch_faults();
    grid.launch = &launch;
    grid.module = launch.function->module->table;
    *grid.module->runtime = &RUNTIME;
    grid.arguments.clear();
    for (const auto &argument : launch.arguments) grid.arguments.push_back(const_cast<unsigned char *>(argument.data()));
    grid.block_size = {launch.block[0], launch.block[1], launch.block[2], 0};
    grid.threads = int(launch.block[0] * launch.block[1] * launch.block[2]);
    for (Warp &warp : grid.warps)
        if (warp.gatherings.size() > 8) warp.gatherings.clear();
    grid.random = settings().seed * 0x9e3779b97f4a7c15ull + 1;
    *grid.module->block_size = grid.block_size;
    *grid.module->grid_size = {launch.grid[0], launch.grid[1], launch.grid[2], 0};
    const char *name = launch.function->kernel->name;
    if (settings().trace)
        say("%s, %u x %u x %u blocks of %d threads", name, launch.grid[0], launch.grid[1], launch.grid[2], grid.threads);
    CUresult result = launch.early ? try_early() : CUDA_SUCCESS;
    if (result == CUDA_SUCCESS) result = run_blocks();
    if (result != CUDA_SUCCESS) {
        set_lasting_error(result);
        return result;
    }
    if (guards_broken((std::string("kernel ") + name).c_str())) {
        set_lasting_error(CUDA_ERROR_ILLEGAL_ADDRESS);
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    }
    return CUDA_SUCCESS;
}

CUresult make_launch(
    Launch &launch, CUfunction function, const unsigned *grid_size, const unsigned *block, unsigned shared, void **arguments
) {
    const Kernel &kernel = *function->kernel;
    const unsigned long long threads = (unsigned long long)block[0] * block[1] * block[2];
    const auto refuse = [&](const char *why) {
        say("the launch of %s is refused: %s", kernel.name, why);
        return CUDA_ERROR_INVALID_VALUE;
    };
    for (int i = 0; i < 3; i++)
        if (grid_size[i] == 0 || block[i] == 0) return refuse("a dimension is zero");
    if (grid_size[0] > 0x7fffffff || grid_size[1] > 65535 || grid_size[2] > 65535) return refuse("too many blocks");
    if (threads > MOST || block[2] > 64) return refuse("too many threads");
    if (kernel.most_threads != 0 && threads > kernel.most_threads) return refuse("more threads than its launch bounds");
    if (shared > unsigned(function->dynamic_limit)) return refuse("more shared memory than it was allowed");
    if (shared + BORDER > function->module->table->dynamic_bytes) return refuse("too much shared memory");
    launch.function = function;
    std::memcpy(launch.grid, grid_size, sizeof launch.grid);
    std::memcpy(launch.block, block, sizeof launch.block);
    launch.shared = shared;
    launch.arguments.clear();
    for (unsigned i = 0; i < kernel.arguments; i++) {
        if (!arguments || !arguments[i]) return refuse("it has fewer arguments than the kernel");
        const unsigned char *from = static_cast<const unsigned char *>(arguments[i]);
        launch.arguments.emplace_back(from, from + kernel.sizes[i]);
    }
    return CUDA_SUCCESS;
}

} // namespace emulator
