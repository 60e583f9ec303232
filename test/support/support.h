// support.h - shared by the tests of kernels: random device tensors, and comparison with fp64
#pragma once
#include <algorithm>
#include <cmath>
#include <random>
#include <span>
#include <vector>

#include "kernels/base/error.h"
#include "kernels/device/memory.h"
#include "kernels/device/types.h"
#include "test/operations/rounded.h"
#include "test/support/catch.h"

namespace test {

using kernels::bf16;

using operations::widen, operations::narrow, operations::ulp;
template <class T> std::vector<double> widen(const std::vector<T>& values) {
    std::vector<double> wide;
    for (T x : values) wide.push_back(widen(x));
    return wide;
}

// `size` normally distributed numbers around `mean`, rounded to T. The same seed gives the same numbers.
template <class T> std::vector<T> normal(std::size_t size, unsigned seed, double deviation = 1, double mean = 0) {
    std::mt19937 engine(seed);
    std::normal_distribution<double> distribution(mean, deviation);
    std::vector<T> values(size);
    for (T& x : values) x = narrow<T>(distribution(engine));
    return values;
}

// Synchronizes, because `host` may be a temporary, and a non-blocking stream does not wait for the null stream.
template <class T> device::Array<T> on_device(const std::vector<T>& host) {
    device::Array<T> array(std::span<const T>(host), nullptr);
    device::sync(nullptr);
    return array;
}
// Device memory filled with 0xff bytes, NaN in every float type, which reveals elements that a kernel does not write.
template <class T> device::Array<T> poisoned(std::size_t size) {
    device::Array<T> array(size);
    const std::vector<unsigned char> bytes(size * sizeof(T), 0xff);
    device::copy_to_device(array.span().data(), bytes.data(), bytes.size(), nullptr);
    device::sync(nullptr);
    return array;
}

// Whether vectors, arrays or spans are bit-identical: NaN equals itself, and 0 differs from -0.
template <class A, class B> bool same_bits(const A& a, const B& b) {
    return std::ranges::equal(std::as_bytes(std::span(a)), std::as_bytes(std::span(b)));
}

// Maximum |got - want| over all elements; infinity if `got` has a NaN.
template <class T> double largest_error(const std::vector<T>& got, const std::vector<double>& want) {
    REQUIRE(got.size() == want.size());
    double largest = 0;
    for (std::size_t i = 0; i < want.size(); ++i) {
        const double error = std::fabs(widen(got[i]) - want[i]);
        largest = std::max(largest, std::isnan(error) ? INFINITY : error);
    }
    return largest;
}
inline double norm(const std::vector<double>& values) {
    double squares = 0;
    for (double x : values) squares += x * x;
    return std::sqrt(squares);
}
inline double largest_magnitude(const std::vector<double>& values) {
    double largest = 0;
    for (double x : values) largest = std::max(largest, std::fabs(x));
    return largest;
}

}  // namespace test
