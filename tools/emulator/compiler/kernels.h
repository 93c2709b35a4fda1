#pragma once

#include <string>
#include <vector>

namespace emulator {

struct KernelName {
    std::string name;
    // The arguments of __launch_bounds__, as they are written; empty without.
    std::string bounds;
};

// Makes C++ of a source that the preprocessor has left; its kernels.
std::vector<KernelName> adapt(std::string &text);

} // namespace emulator
