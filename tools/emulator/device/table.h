// A kernel as the driver calls it: arguments by address, with their sizes. The compiler puts the table of them behind the
// source.
#pragma once

namespace emulator {

template <unsigned... N> struct Numbers {};
template <unsigned N, unsigned... All> struct Count_ : Count_<N - 1, N - 1, All...> {};
template <unsigned... All> struct Count_<0, All...> {
    using Type = Numbers<All...>;
};

template <auto kernel> struct Called;
template <class... A, void (*kernel)(A...)> struct Called<kernel> {
    static constexpr unsigned count = sizeof...(A);
    static constexpr unsigned sizes[sizeof...(A) + 1] = {sizeof(A)...};
    template <unsigned... N> static void with(void *const *arguments, Numbers<N...>) {
        kernel(*static_cast<A *>(arguments[N])...);
    }
    static void call(void *const *arguments) { with(arguments, typename Count_<count>::Type()); }
};

// The first of the arguments of __launch_bounds__.
template <class... Rest> constexpr unsigned most_threads(unsigned threads = 0, Rest...) { return threads; }

} // namespace emulator
