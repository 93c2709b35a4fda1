// Barriers, and what the lanes of a warp do together.
#pragma once

static inline void __syncthreads() { emulator_runtime->barrier(0, emulator::NOTHING); }
static inline int __syncthreads_count(int predicate) { return emulator_runtime->barrier(predicate, emulator::HOW_MANY); }
static inline int __syncthreads_and(int predicate) { return emulator_runtime->barrier(predicate, emulator::ALL); }
static inline int __syncthreads_or(int predicate) { return emulator_runtime->barrier(predicate, emulator::ANY); }

static inline void __syncwarp(unsigned mask = 0xffffffffu) {
    emulator_runtime->meet(mask, emulator::SYNC, nullptr, 0, nullptr);
}

template <class T> static inline emulator::Slot *emulator_meet(unsigned mask, unsigned what, const T &value) {
    static_assert(sizeof(T) <= sizeof(emulator::Slot), "fits");
    return emulator_runtime->meet(mask, what, &value, sizeof(T), nullptr);
}

// The value that a lane brought.
template <class T> static inline T emulator_from(const emulator::Slot *slots, int lane) {
    T value;
    __builtin_memcpy(&value, slots + lane, sizeof(T));
    return value;
}

static inline unsigned __ballot_sync(unsigned mask, int predicate) {
    const emulator::Slot *slots = emulator_meet(mask, emulator::VOTE, predicate);
    unsigned votes = 0;
    for (int lane = 0; lane < 32; lane++)
        if (mask >> lane & 1 && emulator_from<int>(slots, lane) != 0) votes |= 1u << lane;
    return votes;
}
static inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
static inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) == mask; }

// The value of the lane `from`, or one's own where `from` lies outside of the segment.
template <class T> static inline T emulator_shuffle(unsigned mask, T value, int from, bool inside) {
    const emulator::Slot *slots = emulator_meet(mask, emulator::SHUFFLE, value);
    if (!inside) return value;
    if ((mask >> from & 1) == 0) emulator_runtime->fault("a shuffle reads a lane that takes no part");
    return emulator_from<T>(slots, from);
}
template <class T> static inline T __shfl_sync(unsigned mask, T value, int from, int width = 32) {
    const int lane = int(threadIdx.lane), first = lane & ~(width - 1);
    return emulator_shuffle(mask, value, first | (from & (width - 1)), true);
}
template <class T> static inline T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32) {
    const int lane = int(threadIdx.lane), from = lane ^ bits;
    return emulator_shuffle(mask, value, from, from < (lane | (width - 1)) + 1);
}
template <class T> static inline T __shfl_up_sync(unsigned mask, T value, unsigned distance, int width = 32) {
    const int lane = int(threadIdx.lane), from = lane - int(distance);
    return emulator_shuffle(mask, value, from, from >= (lane & ~(width - 1)));
}
template <class T> static inline T __shfl_down_sync(unsigned mask, T value, unsigned distance, int width = 32) {
    const int lane = int(threadIdx.lane), from = lane + int(distance);
    return emulator_shuffle(mask, value, from, from <= (lane | (width - 1)));
}

template <class T, class F> static inline T emulator_reduce(unsigned mask, T value, F &&combine) {
    const emulator::Slot *slots = emulator_meet(mask, emulator::REDUCE, value);
    bool first = true;
    T all = value;
    for (int lane = 0; lane < 32; lane++) {
        if ((mask >> lane & 1) == 0) continue;
        const T one = emulator_from<T>(slots, lane);
        all = first ? one : combine(all, one);
        first = false;
    }
    return all;
}
#define EMULATOR_REDUCE(name, type, expression)                                                                        \
    static inline type __reduce_##name##_sync(unsigned mask, type value) {                                             \
        return emulator_reduce(mask, value, [](type a, type b) -> type { return expression; });                        \
    }
EMULATOR_REDUCE(add, unsigned, a + b)
EMULATOR_REDUCE(min, unsigned, a < b ? a : b)
EMULATOR_REDUCE(max, unsigned, a < b ? b : a)
EMULATOR_REDUCE(add, int, int(unsigned(a) + unsigned(b)))
EMULATOR_REDUCE(min, int, a < b ? a : b)
EMULATOR_REDUCE(max, int, a < b ? b : a)
EMULATOR_REDUCE(and, unsigned, a & b)
EMULATOR_REDUCE(or, unsigned, a | b)
EMULATOR_REDUCE(xor, unsigned, a ^ b)

template <class T> static inline unsigned __match_any_sync(unsigned mask, T value) {
    const emulator::Slot *slots = emulator_meet(mask, emulator::MATCH, value);
    unsigned same = 0;
    for (int lane = 0; lane < 32; lane++)
        if (mask >> lane & 1 && emulator_from<T>(slots, lane) == value) same |= 1u << lane;
    return same;
}
