// adamw.h - AdamW over all parameters in one launch
//
//   g = grad * grad_scale;  m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2
//   master -= lr * (m * first_correction / (sqrt(v * second_correction) + eps) + decay * master);   parameter = rounded master
//
// Everything that changes from step to step is read on the device from StepScalars (grad_norm.h); a skipped step changes nothing.
//
// Shapes    master, m, v, grad: (elements) float; parameter: (elements) T, the same memory as master when T is float;
//           segments: ascending, the last one ends at `elements`; elements a multiple of 16.
// Numerics  in float; rounding to T is to nearest.
// Traffic   elements * (28 + sizeof(T)) bytes in bf16, 28 in fp32.
// Source    Loshchilov, Hutter 2019, arXiv 1711.05101.
#pragma once
#include "kernels/types.h"

namespace kernels {

struct StepScalars;

// Elements from the previous segment's end up to `end` belong to one tensor.
struct DecaySegment {
    std::int64_t end;   // a multiple of 16
    std::int32_t decays;  // 0 or 1
};

template <class T>
struct AdamW {
    std::span<T> parameter;
    std::span<float> master, m, v;
    std::span<const float> grad;
    std::span<const DecaySegment> segments;
    std::span<const StepScalars> scalars;  // (1)
    float beta1, beta2, eps, weight_decay;
};

// Enqueues on `stream`. Throws Error if a span is too short or a length is not a multiple of 16.
template <class T>
void adamw(const AdamW<T>& op, Stream stream);

}  // namespace kernels
