// Faults on demand: by the environment from the start, or by a file while the program runs.
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sys/stat.h>

#include "state.h"

namespace emulator {

// What is asked for: "memory BYTES" (allocations beyond so many bytes fail), "launch N" (the Nth launch from now is
// refused), "kernel N" (the Nth from now crashes), "lost N" (at the Nth from now the card is gone). N begins with 1.
struct Wishes {
    long long memory = -1, launch = 0, kernel = 0, lost = 0;
};

static Wishes wishes;
static CUresult lasting = CUDA_SUCCESS;

static void wish(const std::string &what, long long number) {
    if (what == "memory") wishes.memory = number;
    if (what == "launch") wishes.launch = number;
    if (what == "kernel") wishes.kernel = number;
    if (what == "lost") wishes.lost = number;
}

// Reads CUDA_EMULATOR_FAULTS ("memory 1000000, launch 7", or the name of a file of such lines, read again when it changes).
static void look() {
    static const char *text = std::getenv("CUDA_EMULATOR_FAULTS");
    static struct timespec seen = {0, 0};
    static bool once = false;
    if (!text) return;
    if (text[0] != '/') {
        if (once) return;
        once = true;
        char what[32];
        long long number;
        for (const char *at = text; at;) {
            if (std::sscanf(at, " %31[a-z] %lld", what, &number) == 2) wish(what, number);
            at = std::strchr(at, ',');
            if (at) at++;
        }
        return;
    }
    struct stat about;
    if (stat(text, &about) != 0) return;
    if (about.st_mtim.tv_sec == seen.tv_sec && about.st_mtim.tv_nsec == seen.tv_nsec) return;
    seen = about.st_mtim;
    wishes = Wishes();
    std::ifstream file(text);
    std::string what;
    long long number;
    while (file >> what >> number) wish(what, number);
}

// Counts down to the one that is meant.
static bool comes_up(long long &count) { return count > 0 && --count == 0; }

bool allocation_shall_fail(size_t bytes) {
    look();
    return wishes.memory >= 0 && used_bytes() + bytes > size_t(wishes.memory);
}

CUresult launch_shall_fail() {
    look();
    if (comes_up(wishes.lost)) {
        say("the card is gone, as asked for");
        set_lasting_error(CUDA_ERROR_UNKNOWN);
        return CUDA_ERROR_UNKNOWN;
    }
    if (comes_up(wishes.launch)) {
        say("a launch is refused, as asked for");
        return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
    }
    return CUDA_SUCCESS;
}

CUresult kernel_shall_fail() {
    look();
    if (!comes_up(wishes.kernel)) return CUDA_SUCCESS;
    say("a kernel crashes, as asked for");
    return CUDA_ERROR_ILLEGAL_ADDRESS;
}

CUresult lasting_error() { return lasting; }

void set_lasting_error(CUresult error) {
    if (lasting == CUDA_SUCCESS) lasting = error;
}

void say(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    char line[1024];
    std::vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    std::fprintf(stderr, "cuda emulator: %s\n", line);
}

} // namespace emulator
