// integers.h - quotients that are rounded up, on host and device
#pragma once
#include <concepts>

#include "kernels/base/namespace.h"

namespace base {

// Numbers are at least 0, divisors at least 1; sums near the largest integer do not overflow.
template <std::integral Number, std::integral Divisor>
constexpr auto ceil_div(Number number, Divisor divisor) {
    return number / divisor + (number % divisor != 0);
}
template <std::integral Number, std::integral Multiple>
constexpr auto round_up(Number number, Multiple multiple) {
    return ceil_div(number, multiple) * multiple;
}

}  // namespace base
