// Runs all tests: test HEADERS, the folder of gruff's headers for kernels.
#include <sys/wait.h>
#include <unistd.h>

#include "cuda.h"

std::string headers_folder;

std::vector<Test> &tests() {
    static std::vector<Test> all;
    return all;
}

int main(int count, char **arguments) {
    if (count != 2) {
        std::fprintf(stderr, "usage: test HEADERS\n");
        return 2;
    }
    headers_folder = arguments[1];
    int failed = 0;
    for (const Test &test : tests()) {
        std::fflush(stdout);
        const pid_t child = fork();
        if (child == 0) {
            for (const auto &[name, value] : test.settings) setenv(name, value, 1);
            // What the emulator says of faults that are meant.
            if (!std::getenv("LOUD")) {
                if (!std::freopen("/dev/null", "w", stderr)) std::_Exit(1);
            }
            test.run();
            std::_Exit(0);
        }
        int status = 0;
        waitpid(child, &status, 0);
        const bool sound = WIFEXITED(status) && WEXITSTATUS(status) == 0;
        if (!sound) {
            std::printf("%s: FAILED (%s %d)\n", test.name, WIFEXITED(status) ? "exit" : "signal", WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
            failed++;
        }
    }
    std::printf("%zu tests of the emulator, %d failed\n", tests().size(), failed);
    return failed ? 1 : 0;
}
