// NVRTC's interface. A source is compiled by g++ to a shared object, which is what stands for a cubin.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cerrno>
#include <dlfcn.h>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <spawn.h>
#include <sstream>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include "../abi/image.h"
#include "kernels.h"

#define EXPORTED extern "C" __attribute__((visibility("default")))

namespace fs = std::filesystem;
using namespace emulator;

enum nvrtcResult : int {
    NVRTC_SUCCESS = 0,
    NVRTC_ERROR_INVALID_INPUT = 3,
    NVRTC_ERROR_INVALID_PROGRAM = 4,
    NVRTC_ERROR_INVALID_OPTION = 5,
    NVRTC_ERROR_COMPILATION = 6,
};

struct Program {
    std::string name, source, log, image;
    std::vector<std::pair<std::string, std::string>> headers;
};
typedef Program *nvrtcProgram;

// Where the headers for kernels lie: beside this library.
static fs::path own_folder() {
    Dl_info about;
    dladdr(reinterpret_cast<void *>(own_folder), &about);
    return fs::absolute(about.dli_fname).parent_path();
}

static std::string read(const fs::path &path) {
    std::ifstream file(path, std::ios::binary);
    std::stringstream all;
    all << file.rdbuf();
    return all.str();
}

static void write(const fs::path &path, const std::string &text) {
    std::ofstream(path, std::ios::binary) << text;
}

// Runs a program with its words on stderr kept in a file; whether it succeeded.
static bool run(const std::vector<std::string> &words, const fs::path &errors) {
    std::vector<char *> arguments;
    for (const std::string &word : words) arguments.push_back(const_cast<char *>(word.c_str()));
    arguments.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 2, errors.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    // The libraries of the program that compiles are not for the compiler.
    std::vector<char *> environment;
    for (char **at = environ; *at; at++)
        if (std::strncmp(*at, "LD_LIBRARY_PATH=", 16) != 0 && std::strncmp(*at, "LD_PRELOAD=", 11) != 0) environment.push_back(*at);
    environment.push_back(nullptr);
    pid_t child;
    const int spawned = posix_spawnp(&child, arguments[0], &actions, nullptr, arguments.data(), environment.data());
    posix_spawn_file_actions_destroy(&actions);
    if (spawned != 0) return false;
    int status = 0;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {}
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

// Compiles in a folder of its own.
static bool compile(Program &program, const std::string &defines, const fs::path &folder) {
    const fs::path device = own_folder() / "device", errors = folder / "log";
    for (const auto &[name, text] : program.headers) {
        const fs::path twin = device / name;
        write(folder / name, fs::exists(twin) ? read(twin) : text);
    }
    write(folder / program.name, program.source);
    const char *named = std::getenv("CUDA_EMULATOR_CXX");
    const std::string compiler = named && *named ? named : "g++";
    const std::vector<std::string> first = {compiler, "-E", "-x", "c++", "-std=c++17", "-w", "-I", folder, "-include", device / "prelude.h",
                                      // Behind the prelude, whose names they must not touch.
                                      "-include", folder / "defines.h", folder / program.name, "-o", folder / "kernel.ii"};
    write(folder / "defines.h", defines);
    bool sound = run(first, errors);
    if (sound) {
        std::string text = read(folder / "kernel.ii");
        const std::vector<KernelName> kernels = adapt(text);
        // The table of kernels; macros are gone by now.
        std::string entries;
        for (const KernelName &kernel : kernels)
            entries += "    {\"" + kernel.name + "\", emulator::Called<&" + kernel.name + ">::call, emulator::Called<&" + kernel.name +
                       ">::count, emulator::Called<&" + kernel.name + ">::sizes, emulator::most_threads(" + kernel.bounds + ")},\n";
        text += "\nstatic const emulator::Kernel emulator_kernels[] = {\n" + entries +
                "};\nstatic const emulator::Module emulator_table = {" + std::to_string(EMULATOR_BUILD) +
                "ull, &emulator_runtime, &threadIdx, &blockIdx, &blockDim, &gridDim, emulator_dynamic, sizeof emulator_dynamic,\n"
                "    __start_emulator_shared, __stop_emulator_shared, emulator_kernels, " +
                std::to_string(kernels.size()) +
                "};\nextern \"C\" __attribute__((visibility(\"default\"))) const emulator::Module *emulator_module() { return "
                "&emulator_table; }\n";
        write(folder / "kernel.ii", text);
        sound = run(
            {compiler, "-x", "c++-cpp-output", "-std=c++17", "-O1", "-march=x86-64-v3", "-ffp-contract=fast", "-fno-math-errno",
             "-fno-trapping-math", "-fno-strict-aliasing", "-fwrapv", "-fsanitize=alignment,bounds", "-fsanitize-undefined-trap-on-error",
             "-ftrivial-auto-var-init=pattern", "-fvisibility=hidden", "-fPIC", "-shared", "-Wl,-Bsymbolic", "-w", folder / "kernel.ii",
             "-o", folder / "kernel.so", "-lm"},
            errors
        );
    }
    program.log = read(errors);
    if (!sound) return false;
    const std::string object = read(folder / "kernel.so");
    ImageHeader header;
    std::memcpy(header.magic, IMAGE_MAGIC, sizeof header.magic);
    header.build = EMULATOR_BUILD;
    header.bytes = object.size();
    program.image.assign(reinterpret_cast<const char *>(&header), sizeof header);
    program.image += object;
    return true;
}

EXPORTED nvrtcResult nvrtcVersion(int *major, int *minor) {
    // No minor version of NVIDIA's, and another for each build, so that kept kernels are not taken for others'.
    *major = 13;
    *minor = 100 + int(EMULATOR_BUILD % 100000);
    return NVRTC_SUCCESS;
}

EXPORTED nvrtcResult nvrtcGetNumSupportedArchs(int *count) {
    *count = 6;
    return NVRTC_SUCCESS;
}

EXPORTED nvrtcResult nvrtcGetSupportedArchs(int *list) {
    const int archs[] = {75, 80, 86, 89, 90, 120};
    std::memcpy(list, archs, sizeof archs);
    return NVRTC_SUCCESS;
}

EXPORTED const char *nvrtcGetErrorString(nvrtcResult result) {
    switch (result) {
    case NVRTC_SUCCESS: return "NVRTC_SUCCESS";
    case NVRTC_ERROR_INVALID_INPUT: return "NVRTC_ERROR_INVALID_INPUT";
    case NVRTC_ERROR_INVALID_PROGRAM: return "NVRTC_ERROR_INVALID_PROGRAM";
    case NVRTC_ERROR_INVALID_OPTION: return "NVRTC_ERROR_INVALID_OPTION";
    case NVRTC_ERROR_COMPILATION: return "NVRTC_ERROR_COMPILATION";
    }
    return "NVRTC_ERROR unknown";
}

EXPORTED nvrtcResult nvrtcCreateProgram(
    nvrtcProgram *program, const char *source, const char *name, int count, const char *const *headers, const char *const *names
) {
    Program *made = new Program;
    made->name = name && *name ? name : "default_program";
    made->source = source;
    for (int i = 0; i < count; i++) made->headers.emplace_back(names[i], headers[i]);
    *program = made;
    return NVRTC_SUCCESS;
}

EXPORTED nvrtcResult nvrtcDestroyProgram(nvrtcProgram *program) {
    delete *program;
    *program = nullptr;
    return NVRTC_SUCCESS;
}

EXPORTED nvrtcResult nvrtcCompileProgram(nvrtcProgram program, int count, const char *const *options) {
    std::string defines;
    for (int i = 0; i < count; i++) {
        const std::string option = options[i];
        const auto value = [&](const char *name) { return option.compare(0, std::strlen(name), name) == 0; };
        if (value("--define-macro=")) {
            std::string define = option.substr(15);
            const size_t equals = define.find('=');
            if (equals != std::string::npos) define[equals] = ' ';
            defines += "#define " + define + "\n";
        } else if (value("--gpu-architecture=sm_")) {
            const std::string arch = option.substr(22);
            defines += "#define __CUDA_ARCH__ " + std::to_string(10 * std::atoi(arch.c_str())) + "\n";
            // What that architecture alone has.
            if (arch == "90a") defines += "#define __CUDA_ARCH_FEAT_SM90_ALL 1\n";
        }
        else if (!value("--std=") && option != "--device-as-default-execution-space" && option != "--use_fast_math") {
            program->log = "unknown option " + option;
            return NVRTC_ERROR_INVALID_OPTION;
        }
    }
    std::string pattern = (fs::temp_directory_path() / "cuda-emulator-XXXXXX").string();
    if (!mkdtemp(pattern.data())) return NVRTC_ERROR_COMPILATION;
    const bool sound = compile(*program, defines, pattern);
    if (!std::getenv("CUDA_EMULATOR_KEEP")) fs::remove_all(pattern);
    return sound ? NVRTC_SUCCESS : NVRTC_ERROR_COMPILATION;
}

EXPORTED nvrtcResult nvrtcGetCUBINSize(nvrtcProgram program, size_t *bytes) {
    *bytes = program->image.size();
    return NVRTC_SUCCESS;
}

EXPORTED nvrtcResult nvrtcGetCUBIN(nvrtcProgram program, char *image) {
    std::memcpy(image, program->image.data(), program->image.size());
    return NVRTC_SUCCESS;
}

EXPORTED nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram program, size_t *bytes) {
    *bytes = program->log.size() + 1;
    return NVRTC_SUCCESS;
}

EXPORTED nvrtcResult nvrtcGetProgramLog(nvrtcProgram program, char *log) {
    std::memcpy(log, program->log.c_str(), program->log.size() + 1);
    return NVRTC_SUCCESS;
}
