// Device memory is the process's own, each allocation between two pages that nobody may touch and with marked bytes up to
// them. Fresh memory is full of NaN; what was given back stays out of reach for a while.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <sys/mman.h>

#include "state.h"

namespace emulator {

constexpr size_t PAGE = 4096;
constexpr size_t BORDER = 256;
constexpr unsigned char FRESH = 0xff, MARK = 0xa5;
constexpr size_t KEPT = 256;

static std::map<uintptr_t, Allocation> allocations;
static std::map<uintptr_t, size_t> pinned;
static std::deque<Allocation> gone;
static size_t used;

size_t used_bytes() { return used; }

static CUresult allocate(size_t bytes, CUdeviceptr *pointer) {
    if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    if (bytes > settings().memory_bytes || used + bytes > settings().memory_bytes || allocation_shall_fail(bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    // The end is as near to the forbidden page as an allocation's alignment allows; at least BORDER bytes are in front.
    const size_t rounded = (bytes + BORDER - 1) / BORDER * BORDER;
    const size_t inner = (rounded + BORDER + PAGE - 1) / PAGE * PAGE;
    void *pages = mmap(nullptr, inner + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (pages == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    unsigned char *first = static_cast<unsigned char *>(pages) + PAGE;
    if (mprotect(first, inner, PROT_READ | PROT_WRITE) != 0) {
        munmap(pages, inner + 2 * PAGE);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    unsigned char *begin = first + inner - rounded;
    std::memset(first, MARK, begin - first);
    std::memset(begin, FRESH, bytes);
    std::memset(begin + bytes, MARK, rounded - bytes);
    allocations[uintptr_t(begin)] = {
        begin, bytes, static_cast<unsigned char *>(pages), inner + 2 * PAGE, std::vector<bool>(inner / PAGE)
    };
    used += bytes;
    *pointer = CUdeviceptr(uintptr_t(begin));
    return CUDA_SUCCESS;
}

static bool all_marked(const unsigned char *from, const unsigned char *to) {
    for (; from < to; from++)
        if (*from != MARK) return false;
    return true;
}

static bool guard_broken(const Allocation &at, size_t front, const char *behind) {
    const unsigned char *begin = at.pages + PAGE, *end = at.pages + at.page_bytes - PAGE;
    if (size_t(at.begin - begin) > front) begin = at.begin - front;
    const bool before = !all_marked(begin, at.begin), after = !all_marked(at.begin + at.bytes, end);
    if (before || after)
        say("%s wrote %s an allocation of %zu bytes", behind, after ? "behind" : "in front of", at.bytes);
    return before || after;
}

bool guards_broken(const char *behind) {
    bool broken = false;
    for (const auto &entry : allocations) broken |= guard_broken(entry.second, BORDER, behind);
    return broken;
}

const Allocation *allocation_at(uintptr_t address) {
    auto next = allocations.upper_bound(address);
    if (next == allocations.begin()) return nullptr;
    const Allocation &at = std::prev(next)->second;
    return address < uintptr_t(at.begin) + at.bytes ? &at : nullptr;
}

// The allocation whose pages an address is on.
static Allocation *pages_at(uintptr_t address) {
    const auto reaches = [&](const Allocation &at) {
        return address >= uintptr_t(at.pages) + PAGE && address < uintptr_t(at.pages) + at.page_bytes - PAGE;
    };
    auto next = allocations.upper_bound(address);
    // The first page begins in front of the allocation.
    if (next != allocations.end() && reaches(next->second)) return &next->second;
    if (next == allocations.begin()) return nullptr;
    Allocation &before = std::prev(next)->second;
    return reaches(before) ? &before : nullptr;
}

// Calls `each(pages, bytes, from_host)` for stretches of pages that are alike, from the first page on to the one before `end`.
template <class F> static void stretches(const Allocation &at, size_t first, size_t end, F each) {
    while (first < end) {
        size_t last = first + 1;
        while (last < end && at.from_host[last] == at.from_host[first]) last++;
        each(at.pages + PAGE * (1 + first), (last - first) * PAGE, bool(at.from_host[first]));
        first = last;
    }
}

void write_as_host(void *to, const void *from, size_t bytes) {
    Allocation *at = bytes ? pages_at(uintptr_t(to)) : nullptr;
    if (!at) return;
    watch_faults();
    const uintptr_t begin = uintptr_t(at->pages) + PAGE;
    const size_t first = (uintptr_t(to) - begin) / PAGE, end = (uintptr_t(to) + bytes - begin + PAGE - 1) / PAGE;
    stretches(*at, first, end, [](unsigned char *pages, size_t length, bool from_host) {
        if (from_host) mprotect(pages, length, PROT_READ | PROT_WRITE);
    });
    std::memcpy(to, from, bytes);
    std::fill(at->from_host.begin() + ptrdiff_t(first), at->from_host.begin() + ptrdiff_t(end), true);
    mprotect(at->pages + PAGE * (1 + first), (end - first) * PAGE, PROT_READ);
}

bool takes_over(uintptr_t address) {
    Allocation *at = pages_at(address);
    if (!at) return false;
    const size_t page = (address - uintptr_t(at->pages)) / PAGE - 1;
    if (!at->from_host[page]) return false;
    at->from_host[page] = false;
    return mprotect(at->pages + PAGE * (1 + page), PAGE, PROT_READ | PROT_WRITE) == 0;
}

void forbid_memory(bool forbidden) {
    const int allowed = forbidden ? PROT_NONE : PROT_READ | PROT_WRITE;
    for (const auto &entry : allocations) {
        const Allocation &at = entry.second;
        stretches(at, 0, at.from_host.size(), [=](unsigned char *pages, size_t length, bool from_host) {
            if (!from_host) mprotect(pages, length, allowed);
        });
    }
}

bool device_range(CUdeviceptr pointer, size_t bytes) {
    const Allocation *at = allocation_at(uintptr_t(pointer));
    return at && uintptr_t(pointer) + bytes <= uintptr_t(at->begin) + at->bytes;
}

std::string describe(uintptr_t address) {
    char line[160];
    const auto inside = [&](const Allocation &at) {
        return address >= uintptr_t(at.pages) && address < uintptr_t(at.pages) + at.page_bytes;
    };
    for (const auto &entry : allocations) {
        const Allocation &at = entry.second;
        if (!inside(at)) continue;
        const uintptr_t end = uintptr_t(at.begin) + at.bytes;
        if (address >= end)
            std::snprintf(line, sizeof line, "%zu bytes behind the end of an allocation of %zu bytes", size_t(address - end), at.bytes);
        else
            std::snprintf(line, sizeof line, "byte %td of an allocation of %zu bytes", ptrdiff_t(address) - ptrdiff_t(at.begin), at.bytes);
        return line;
    }
    for (const Allocation &at : gone)
        if (inside(at)) return "memory that was given back";
    return "no device memory";
}

static CUresult give_back(CUdeviceptr pointer) {
    auto found = allocations.find(uintptr_t(pointer));
    if (found == allocations.end()) return CUDA_ERROR_INVALID_VALUE;
    const Allocation at = std::move(found->second);
    const bool broken = guard_broken(at, at.page_bytes, "somebody");
    allocations.erase(found);
    used -= at.bytes;
    madvise(at.pages, at.page_bytes, MADV_DONTNEED);
    mprotect(at.pages, at.page_bytes, PROT_NONE);
    gone.push_back(at);
    if (gone.size() > KEPT) {
        munmap(gone.front().pages, gone.front().page_bytes);
        gone.pop_front();
    }
    if (broken) set_lasting_error(CUDA_ERROR_ILLEGAL_ADDRESS);
    return lasting_error();
}

bool is_pinned(const void *host) {
    auto next = pinned.upper_bound(uintptr_t(host));
    if (next == pinned.begin()) return false;
    const auto &at = *std::prev(next);
    return uintptr_t(host) < at.first + at.second;
}

} // namespace emulator

using namespace emulator;

EXPORTED CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes) {
    ENTER();
    TRY(refuse_during_capture());
    return allocate(bytes, pointer);
}

EXPORTED CUresult cuMemFree_v2(CUdeviceptr pointer) {
    ENTER();
    if (pointer == 0) return CUDA_SUCCESS;
    TRY(refuse_during_capture());
    // The driver waits for what may use it.
    TRY(drain_all());
    return give_back(pointer);
}

EXPORTED CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t bytes, CUstream stream) {
    ENTER();
    if (!known_stream(stream)) return CUDA_ERROR_INVALID_HANDLE;
    TRY(refuse_on(stream));
    return allocate(bytes, pointer);
}

EXPORTED CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream) {
    ENTER();
    if (!known_stream(stream)) return CUDA_ERROR_INVALID_HANDLE;
    TRY(refuse_on(stream));
    return submit(stream, {CU_GRAPH_NODE_TYPE_EMPTY, nullptr, [pointer] { return give_back(pointer); }});
}

EXPORTED CUresult cuMemGetInfo_v2(size_t *free, size_t *total) {
    ENTER();
    *total = settings().memory_bytes;
    *free = *total - used;
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuMemHostAlloc(void **pointer, size_t bytes, unsigned) {
    ENTER();
    TRY(refuse_during_capture());
    void *pages = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    if (pages == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    std::memset(pages, FRESH, bytes);
    pinned[uintptr_t(pages)] = bytes;
    *pointer = pages;
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuMemAllocHost_v2(void **pointer, size_t bytes) { return cuMemHostAlloc(pointer, bytes, 0); }

EXPORTED CUresult cuMemFreeHost(void *pointer) {
    ENTER();
    TRY(refuse_during_capture());
    auto found = pinned.find(uintptr_t(pointer));
    if (found == pinned.end()) return CUDA_ERROR_INVALID_VALUE;
    TRY(drain_all());
    munmap(pointer, found->second);
    pinned.erase(found);
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuMemHostRegister_v2(void *pointer, size_t bytes, unsigned) {
    ENTER();
    TRY(refuse_during_capture());
    if (is_pinned(pointer)) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    pinned[uintptr_t(pointer)] = bytes;
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuMemHostUnregister(void *pointer) {
    ENTER();
    TRY(refuse_during_capture());
    TRY(drain_all());
    return pinned.erase(uintptr_t(pointer)) ? CUDA_SUCCESS : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
}

EXPORTED CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *device, void *host, unsigned) {
    ENTER();
    if (!is_pinned(host)) return CUDA_ERROR_INVALID_VALUE;
    *device = CUdeviceptr(uintptr_t(host));
    return CUDA_SUCCESS;
}
