// Memory: atomics (threads take turns, so they are ordinary operations), cached loads and stores, fences.
#pragma once

#define EMULATOR_ATOMIC(name, type, expression)                                                                        \
    static inline type atomic##name(type *at, type value) {                                                            \
        const type old = *at;                                                                                          \
        *at = expression;                                                                                              \
        return old;                                                                                                    \
    }                                                                                                                  \
    static inline type atomic##name##_block(type *at, type value) { return atomic##name(at, value); }
#define EMULATOR_ATOMIC_INTEGERS(name, expression)                                                                     \
    EMULATOR_ATOMIC(name, unsigned, expression)                                                                        \
    EMULATOR_ATOMIC(name, unsigned long long, expression)
EMULATOR_ATOMIC_INTEGERS(Add, old + value)
EMULATOR_ATOMIC(Add, int, int(unsigned(old) + unsigned(value)))
EMULATOR_ATOMIC(Add, float, old + value)
EMULATOR_ATOMIC(Add, double, old + value)
EMULATOR_ATOMIC(Sub, int, int(unsigned(old) - unsigned(value)))
EMULATOR_ATOMIC(Sub, unsigned, old - value)
EMULATOR_ATOMIC_INTEGERS(Min, value < old ? value : old)
EMULATOR_ATOMIC_INTEGERS(Max, old < value ? value : old)
EMULATOR_ATOMIC(Min, int, value < old ? value : old)
EMULATOR_ATOMIC(Max, int, old < value ? value : old)
EMULATOR_ATOMIC(Min, long long, value < old ? value : old)
EMULATOR_ATOMIC(Max, long long, old < value ? value : old)
EMULATOR_ATOMIC_INTEGERS(And, old & value)
EMULATOR_ATOMIC_INTEGERS(Or, old | value)
EMULATOR_ATOMIC_INTEGERS(Xor, old ^ value)
EMULATOR_ATOMIC(And, int, old &value)
EMULATOR_ATOMIC(Or, int, old | value)
EMULATOR_ATOMIC(Xor, int, old ^ value)
EMULATOR_ATOMIC_INTEGERS(Exch, value)
EMULATOR_ATOMIC(Exch, int, value)
EMULATOR_ATOMIC(Exch, float, value)
EMULATOR_ATOMIC(Inc, unsigned, old >= value ? 0u : old + 1)
EMULATOR_ATOMIC(Dec, unsigned, old == 0 || old > value ? value : old - 1)

template <class T> static inline T atomicCAS(T *at, T expected, T value) {
    const T old = *at;
    if (old == expected) *at = value;
    return old;
}

#define EMULATOR_LOAD(name)                                                                                            \
    template <class T> static inline T name(const T *at) { return *at; }
EMULATOR_LOAD(__ldg)
EMULATOR_LOAD(__ldca)
EMULATOR_LOAD(__ldcg)
EMULATOR_LOAD(__ldcs)
EMULATOR_LOAD(__ldlu)
EMULATOR_LOAD(__ldcv)
#define EMULATOR_STORE(name)                                                                                           \
    template <class T> static inline void name(T *at, T value) { *at = value; }
EMULATOR_STORE(__stcg)
EMULATOR_STORE(__stcs)
EMULATOR_STORE(__stwb)
EMULATOR_STORE(__stwt)

static inline void __threadfence_block() {}
static inline void __threadfence() {}
static inline void __threadfence_system() {}
static inline void __trap() { emulator_runtime->fault("__trap"); }
static inline void __nanosleep(unsigned) {}
static inline long long clock64() { return 0; }

// An offset into shared memory on a card; here only a number that nothing is done with.
static inline size_t __cvta_generic_to_shared(const void *at) { return size_t(at); }
