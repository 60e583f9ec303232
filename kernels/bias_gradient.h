// bias_gradient.h - gradient of a bias that was added to every row
//
//   dbias[c] (+)= sum over rows of dout[row, c]
//
// Shapes    dout: (rows, channels) T; dbias: (channels) float.
// Numerics  sums in float in a fixed order.
// Traffic   rows * channels * sizeof(T) bytes.
#pragma once
#include "kernels/device/types.h"

namespace kernels {

template <class T>
struct BiasGradient {
    std::span<float> dbias;
    std::span<float> scratch;  // bias_gradient_scratch(channels) floats
    std::span<const T> dout;
    int rows, channels;
    bool accumulate;  // false: dbias is overwritten, true: added to
};

std::size_t bias_gradient_scratch(int channels);  // floats
// Enqueues on `stream`. Throws Error if channels is not a multiple of 16 / sizeof(T) or a span is too short.
template <class T>
void bias_gradient(const BiasGradient<T>& op, StreamRef stream);

}  // namespace kernels
