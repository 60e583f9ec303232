// integers.h - quotients that are rounded up, on host and device
#pragma once
#include <concepts>

#include "kernels/base/namespace.h"

namespace base {

// Divisors are at least 1. A negative number gives 0 or less; sums near the largest integer do not overflow.
template <std::integral Number, std::integral Divisor>
constexpr auto ceil_div(Number number, Divisor divisor) {
    return number / divisor + (number % divisor > 0);
}
template <std::integral Number, std::integral Multiple>
constexpr auto round_up(Number number, Multiple multiple) {
    return ceil_div(number, multiple) * multiple;
}

}  // namespace base
