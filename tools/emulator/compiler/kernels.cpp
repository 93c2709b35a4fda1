// What a source, run through the preprocessor, says of kernels and shared memory, and the little that it must be changed.
#include "kernels.h"

#include <cctype>

namespace emulator {

static bool name_char(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

static size_t skip_spaces(const std::string &text, size_t at) {
    for (;;) {
        while (at < text.size() && std::isspace(static_cast<unsigned char>(text[at]))) at++;
        // A line marker.
        if (at < text.size() && text[at] == '#' && at > 0 && text[at - 1] == '\n') at = text.find('\n', at);
        else return at;
        if (at == std::string::npos) return text.size();
    }
}

// Where the word stands by itself, from a place on.
static size_t find_word(const std::string &text, const std::string &word, size_t from) {
    for (size_t at = text.find(word, from); at != std::string::npos; at = text.find(word, at + 1)) {
        const size_t end = at + word.size();
        if ((at == 0 || !name_char(text[at - 1])) && (end == text.size() || !name_char(text[end]))) return at;
    }
    return std::string::npos;
}

// Behind the parenthesis that closes the one at `open`.
static size_t behind_parenthesis(const std::string &text, size_t open) {
    int depth = 0;
    for (size_t at = open; at < text.size(); at++) {
        if (text[at] == '(') depth++;
        if (text[at] == ')' && --depth == 0) return at + 1;
    }
    return text.size();
}

static void blank(std::string &text, size_t from, size_t to) {
    for (; from < to; from++)
        if (text[from] != '\n') text[from] = ' ';
}

// Blanks `__global__` and `__launch_bounds__(…)` and notes the names in front of the parameters.
static std::vector<KernelName> take_kernels(std::string &text) {
    std::vector<KernelName> kernels;
    const std::string mark = "__global__", bounds = "__launch_bounds__";
    for (size_t at = find_word(text, mark, 0); at != std::string::npos; at = find_word(text, mark, at)) {
        blank(text, at, at + mark.size());
        KernelName kernel;
        for (size_t next = at;;) {
            next = skip_spaces(text, next);
            size_t end = next;
            while (end < text.size() && name_char(text[end])) end++;
            if (end == next) break;
            const std::string word = text.substr(next, end - next);
            if (word == bounds) {
                const size_t open = text.find('(', end), behind = behind_parenthesis(text, open);
                kernel.bounds = text.substr(open + 1, behind - open - 2);
                blank(text, next, behind);
                next = behind;
            } else if (word == "__attribute__") {
                next = behind_parenthesis(text, text.find('(', end));
            } else {
                // The last word before the parenthesis is the name.
                kernel.name = word;
                next = end;
            }
        }
        if (!kernel.name.empty()) kernels.push_back(kernel);
    }
    return kernels;
}

// `extern __shared__ T name[];` (the preprocessor has made `static` and a section of __shared__) names the one dynamic
// area: `T *const name = (T *)…;`
static void place_dynamic(std::string &text) {
    for (size_t at = find_word(text, "extern", 0); at != std::string::npos; at = find_word(text, "extern", at + 1)) {
        size_t next = skip_spaces(text, at + 6);
        if (text.compare(next, 10, "__shared__") != 0) continue;
        next += 10;
        const size_t end = text.find(';', next), bracket = text.rfind('[', end);
        if (end == std::string::npos || bracket == std::string::npos || bracket < next) continue;
        size_t name_end = bracket;
        while (name_end > next && std::isspace(static_cast<unsigned char>(text[name_end - 1]))) name_end--;
        size_t name = name_end;
        while (name > next && name_char(text[name - 1])) name--;
        std::string type = text.substr(next, name - next);
        const size_t aligned = type.find("__attribute__");
        if (aligned != std::string::npos) type.erase(aligned, behind_parenthesis(type, type.find('(', aligned)) - aligned);
        const std::string placed =
            type + "*const " + text.substr(name, name_end - name) + " = (" + type + "*)emulator_dynamic";
        text.replace(at, end - at, placed);
    }
}

// What is left of __shared__ is static memory of the block.
static void place_static(std::string &text) {
    const std::string mark = "__shared__", place = "static __attribute__((section(\"emulator_shared\")))";
    for (size_t at = find_word(text, mark, 0); at != std::string::npos; at = find_word(text, mark, at)) {
        text.replace(at, mark.size(), place);
    }
}

std::vector<KernelName> adapt(std::string &text) {
    std::vector<KernelName> kernels = take_kernels(text);
    place_dynamic(text);
    place_static(text);
    return kernels;
}

} // namespace emulator
