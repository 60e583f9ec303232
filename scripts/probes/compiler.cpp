// compiler.cpp - the C++20 features that train_gpt2 uses; scripts/install_deps.sh compiles it
//
// library:  C++ compiler
// expected: g++ 11 or clang++ 14
// packages: g++
// version:  __VERSION__
#include <omp.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <compare>
#include <concepts>
#include <numbers>
#include <ranges>
#include <span>
#include <string_view>
#include <vector>

struct Shape {
    int rows, columns;
    auto operator<=>(const Shape&) const = default;
};

template <std::floating_point Number> Number parsed(std::string_view text) {
    Number value{};
    std::from_chars(text.data(), text.data() + text.size(), value);
    return value;
}

int main() {
    std::vector<Shape> shapes{{.rows = 2, .columns = 1}, {.rows = 1, .columns = 2}};
    std::ranges::sort(shapes);
    const auto all = std::as_bytes(std::span(shapes));
    const auto seen = [&]<class T>(T sum) { return sum + parsed<double>("1e3") + std::numbers::pi; };
    int threads = 0;
#pragma omp parallel reduction(+ : threads)
    threads += std::bit_cast<int>(1.0f) != 0;
    return std::string_view("ab").starts_with('a') && !all.empty() && seen(threads) > 0 ? 0 : omp_get_max_threads();
}
