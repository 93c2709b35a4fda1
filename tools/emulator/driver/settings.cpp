// What the environment says; README.md lists it.
#include <cstdlib>
#include <cstring>

#include "state.h"

namespace emulator {

static long long number(const char *name, long long otherwise) {
    const char *text = std::getenv(name);
    return text && *text ? std::strtoll(text, nullptr, 10) : otherwise;
}

static Settings read() {
    Settings all;
    all.devices = int(number("CUDA_EMULATOR_DEVICES", 1));
    const int capability = int(number("CUDA_EMULATOR_CAPABILITY", 90));
    all.major = capability / 10;
    all.minor = capability % 10;
    all.multiprocessors = int(number("CUDA_EMULATOR_MULTIPROCESSORS", 8));
    all.driver = int(number("CUDA_EMULATOR_DRIVER", 13000));
    // What cards of that capability let a block have.
    const int kib = capability == 75 ? 64 : capability == 80 || capability == 87 ? 163 : capability < 90 ? 99 : capability >= 120 ? 99 : 227;
    all.shared_bytes = int(number("CUDA_EMULATOR_SHARED", kib * 1024));
    all.memory_bytes = size_t(number("CUDA_EMULATOR_MEMORY", 16ll << 30));
    all.order = Order::FORWARD;
    all.seed = 1;
    if (const char *order = std::getenv("CUDA_EMULATOR_ORDER")) {
        if (std::strcmp(order, "backward") == 0) all.order = Order::BACKWARD;
        if (std::strncmp(order, "random", 6) == 0) {
            all.order = Order::RANDOM;
            if (order[6] == ':') all.seed = std::strtoull(order + 7, nullptr, 10);
        }
    }
    all.late = number("CUDA_EMULATOR_LATE", 0) != 0;
    all.trace = number("CUDA_EMULATOR_TRACE", 0) != 0;
    all.idle = number("CUDA_EMULATOR_IDLE", 0) != 0;
    return all;
}

const Settings &settings() {
    static const Settings all = read();
    return all;
}

} // namespace emulator
