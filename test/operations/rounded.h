// rounded.h - a number with a model of float rounding errors: the exact value of a formula and the variance of a float
// result about it
//
// Every operation adds its own rounding error, assumed independent of all others, to the errors of its operands, so
// errors of sums grow with the square root of their length (Higham, Mary 2019, doi 10.1137/18M1226312). A formula
// evaluated on such numbers yields reference and tolerance of every element: a float result must lie within kDeviations
// standard deviations.
#pragma once
#include <algorithm>
#include <cmath>
#include <type_traits>

#include "kernels/device/types.h"

namespace operations {

using kernels::bf16, kernels::e4m3, kernels::e5m2, kernels::is_fp8;
using std::exp, std::log, std::sqrt;

inline constexpr double kUnit = 0x1p-24;      // largest relative error of one rounding to float
inline constexpr double kSmallest = 0x1p-125;  // smaller values may be flushed to 0
// One rounding counts as kUnit, its maximum. Four deviations also cover sixteen roundings that all have the same sign.
inline constexpr double kDeviations = 4;

template <class T> double widen(T x) {
    if constexpr (std::is_same_v<T, bf16>) return kernels::bf16_to_float(x);
    else if constexpr (is_fp8<T>) return kernels::fp8_to_float(x);
    else return double(x);
}
// To nearest, ties to even; a magnitude above the largest finite value becomes that one.
template <class T> T narrow_to_fp8(double x) {
    if (std::isnan(x)) return {0x7f};
    const double magnitude = std::min(std::fabs(x), double(T::kLargest));
    const int exponent = std::max(std::ilogb(magnitude + 1e-300), 1 - T::kBias);
    const int steps = int(std::nearbyint(std::ldexp(magnitude, T::kMantissa - exponent)));
    const int code = ((exponent + T::kBias - 1) << T::kMantissa) + steps;
    return {std::uint8_t(code | (std::signbit(x) ? 0x80 : 0))};
}
template <class T> T narrow(double x) {
    if constexpr (std::is_same_v<T, bf16>) return kernels::bf16_from_float(float(x));
    else if constexpr (is_fp8<T>) return narrow_to_fp8<T>(x);
    else return T(x);
}
// One unit in the last place of T at magnitude x: the error of rounding to T is at most half of it.
template <class T> double ulp(double x) {
    const int exponent = std::ilogb(std::fabs(x) + 1e-30);
    if constexpr (is_fp8<T>) return std::ldexp(1.0, std::max(exponent, 1 - T::kBias) - T::kMantissa);
    constexpr int kDigits = std::is_same_v<T, bf16> ? 7 : std::is_same_v<T, double> ? 52 : 23;
    return std::ldexp(1.0, exponent - kDigits);
}

struct Rounded {
    double value = 0, variance = 0;
    double squares = 0;  // if the number is a sum: the sum of its terms' squares
    Rounded() = default;
    Rounded(double exact) : value(exact) {}
    Rounded(double value, double variance) : value(value), variance(variance) {}
    explicit operator double() const { return value; }
    explicit operator int() const { return int(value); }
    Rounded& operator+=(const Rounded& x);
};

constexpr double square(double x) { return x * x; }
// A result with variance `inherited` from its operands that is itself rounded `roundings` times.
inline Rounded rounded(double value, double inherited, double roundings = 1) {
    return {value, inherited + square(roundings * kUnit * value) + square(kSmallest)};
}

inline Rounded operator-(const Rounded& a) { return {-a.value, a.variance}; }
inline Rounded operator+(const Rounded& a, const Rounded& b) {
    return rounded(a.value + b.value, a.variance + b.variance);
}
inline Rounded operator-(const Rounded& a, const Rounded& b) {
    return rounded(a.value - b.value, a.variance + b.variance);
}
inline Rounded operator*(const Rounded& a, const Rounded& b) {
    return rounded(a.value * b.value, square(a.value) * b.variance + square(b.value) * a.variance);
}
// A GPU's fast division and square root have an error of two units in the last place, which is four roundings.
inline Rounded operator/(const Rounded& a, const Rounded& b) {
    const double quotient = a.value / b.value;
    return rounded(quotient, (a.variance + square(quotient) * b.variance) / square(b.value), 4);
}
// A sum may be computed in any order. If terms happen to cancel in this order, the partial sums of another order have a
// magnitude like the root of the sum of squares, which determines their rounding errors.
inline Rounded& Rounded::operator+=(const Rounded& x) {
    squares = (squares > 0 ? squares : square(value)) + square(x.value);
    value += x.value;
    variance += x.variance + square(kUnit) * std::max(square(value), squares) + square(kSmallest);
    return *this;
}
inline bool operator<(const Rounded& a, const Rounded& b) { return a.value < b.value; }

inline Rounded sqrt(const Rounded& x) {
    const double root = std::sqrt(x.value);
    return rounded(root, root > 0 ? x.variance / square(2 * root) : x.variance, 4);
}
// The hardware's exp has an error of 2 + |x| units in the last place (math.cuh).
inline Rounded exp(const Rounded& x) {
    const double power = std::exp(x.value);
    return rounded(power, square(power) * x.variance, 2 * (2 + std::fabs(x.value)));
}
inline Rounded log(const Rounded& x) {
    return rounded(std::log(x.value), x.variance / square(x.value), 4) + Rounded(0, square(2 * kUnit));
}

// A sum of products in an order that the library chooses, on tensor cores not rounded to nearest: its error, relative
// to the sum of the terms' magnitudes, grows with the square root of their number.
template <class N> struct Products {
    N sum = 0;
    void add(N a, N b) { sum += a * b; }
    N result(int) const { return sum; }
};
template <> struct Products<Rounded> {
    double sum = 0, magnitude = 0;
    void add(const Rounded& a, const Rounded& b) {
        sum += a.value * b.value;
        magnitude += std::fabs(a.value * b.value);
    }
    Rounded result(int terms) const { return {sum, square((4 + std::sqrt(terms)) * kUnit * magnitude / kDeviations)}; }
};

}  // namespace operations
