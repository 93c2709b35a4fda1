#include "fibers.h"

#include <cstdint>
#include <cstdlib>
#include <sys/mman.h>

#if !defined(__x86_64__)
#error "the switch between fibers and the conversions of halves are written for x86-64"
#endif

namespace emulator {

constexpr size_t STACK = 256 * 1024, PAGE = 4096;

// The registers that the calling convention says a function keeps.
asm(R"(
.text
.globl emulator_switch
.hidden emulator_switch
.type emulator_switch, @function
emulator_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size emulator_switch, .-emulator_switch
)");

Fiber *make_fiber(void (*main)()) {
    void *pages = mmap(nullptr, STACK + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (pages == MAP_FAILED) std::abort();
    mprotect(pages, PAGE, PROT_NONE);
    Fiber *fiber = new Fiber{nullptr, static_cast<unsigned char *>(pages), STACK + PAGE, 0, {}};
    uintptr_t *top = reinterpret_cast<uintptr_t *>(fiber->pages + fiber->bytes);
    // As behind a call: the stack is eight bytes off a border of 16 when `main` begins.
    *--top = 0;
    *--top = uintptr_t(main);
    for (int i = 0; i < 6; i++) *--top = 0;
    fiber->stack_pointer = top;
    return fiber;
}

} // namespace emulator
