// plain_product.h - a matrix product of any shape, for the few shapes for which a library has no algorithm
//
//   out[i, j] = alpha * (sum over k of a[i, k] b[k, j]) + bias[j] + beta * addend[i, j]
//
// Sums in float, in the order of k. Reads each factor once for every row or column of the other one: simple, not fast.
#pragma once
#include "kernels/device/types.h"

namespace kernels {

// A matrix in memory: element (i, j) is at[i * row + j * column]; `row` and `column` are strides in elements.
template <class T>
struct MatrixView {
    const T* at;
    std::int64_t row, column;
};

template <class T, class Out>
struct PlainProduct {
    std::span<Out> out;     // (m, n)
    MatrixView<T> a, b;     // (m, k), (k, n)
    const T* bias;          // n, or nullptr
    int m, n, k;
    float alpha = 1, beta = 0;
    const Out* addend = nullptr;  // (m, n), or out itself; nullptr: beta is 0
};

// Spans are device memory. Enqueues on `stream`. Throws Error if `out` is too small or a size is not positive.
// Instantiated for Out = T and for Out = float.
template <class T, class Out> void plain_product(const PlainProduct<T, Out>& op, StreamRef stream);

}  // namespace kernels
