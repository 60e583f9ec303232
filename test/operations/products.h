// products.h - a sum of products, as a matrix library computes it
#pragma once
#include <cmath>

#include "test/operations/rounded.h"

namespace operations {

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
