// What stands in front of a compiled module's bytes.
#pragma once

namespace emulator {

struct ImageHeader {
    char magic[8];
    // Of the compiler; the driver takes only its own.
    unsigned long long build;
    unsigned long long bytes;
};

constexpr char IMAGE_MAGIC[8] = {'c', 'u', 'd', 'a', 'e', 'm', 'u', '\n'};

} // namespace emulator
