// gradient_copy.h - gradients on their way to and from other ranks: out = in between fp32 and bf16, or out += in where
// out is fp32
//
// Shapes    out, in: (elements), a multiple of 16.
// Numerics  exact into fp32, added in float; rounded to nearest into bf16.
// Traffic   elements * (sizeof(In) + sizeof(Out)) bytes, sizeof(Out) more where it adds.
#pragma once
#include "kernels/device/types.h"

namespace kernels {

template <class Out, class In>
struct GradientCopy {
    std::span<Out> out;
    std::span<const In> in;
    bool accumulate = false;
};
// Enqueues on `stream`; <float, float>, <float, bf16> and <bf16, float>. Throws Error unless both are equally long, a
// multiple of 16, and where bf16 would be added to.
template <class Out, class In>
void gradient_copy(const GradientCopy<Out, In>& op, StreamRef stream);

}  // namespace kernels
