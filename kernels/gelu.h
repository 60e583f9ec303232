// gelu.h - the Gaussian error linear unit in its tanh form, and its gradient
//
//   out = 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))),     din = dout * d out / d x
//
// Shapes    all: (elements) T, elements a multiple of 16 / sizeof(T).
// Numerics  in float, in the equivalent form x / (1 + exp(-2u)), u being the argument of tanh; exp to 3e-7 relative
//           (math.cuh).
// Traffic   forward 2, backward 3 * elements * sizeof(T) bytes.
// Source    Hendrycks, Gimpel 2016, arXiv 1606.08415, as GPT-2 uses it.
#pragma once
#include "kernels/device/types.h"

namespace kernels {

template <class T>
struct GeluForward {
    std::span<T> out;
    std::span<const T> in;
};
template <class T>
struct GeluBackward {
    std::span<T> din;  // may be `dout`
    std::span<const T> dout, in;
};

// Both enqueue on `stream` and throw Error if the spans differ in length or the length is not a multiple of 16 /
// sizeof(T).
template <class T>
void gelu_forward(const GeluForward<T>& op, StreamRef stream);
template <class T>
void gelu_backward(const GeluBackward<T>& op, StreamRef stream);

}  // namespace kernels
