// gradient_copy.h - copies gradients before and after an exchange between ranks: out = in with conversion between fp32
// and bf16, or out += in if out is fp32
//
// Shapes    out, in: (elements), a multiple of 16.
// Numerics  conversion to fp32 is exact, addition in float; rounding to bf16 is to nearest.
// Traffic   elements * (sizeof(In) + sizeof(Out)) bytes, plus elements * sizeof(Out) when accumulating.
#pragma once
#include "kernels/device/types.h"

namespace kernels {

template <class Out, class In>
struct GradientCopy {
    std::span<Out> out;
    std::span<const In> in;
    bool accumulate = false;
};
// Enqueues on `stream`. Instantiated for <float, float>, <float, bf16> and <bf16, float>. Throws Error if the lengths
// differ or are not a multiple of 16, or if `accumulate` is set with a bf16 output.
template <class Out, class In>
void gradient_copy(const GradientCopy<Out, In>& op, StreamRef stream);

}  // namespace kernels
