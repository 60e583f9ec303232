// adamw.h - AdamW over all parameters in one launch
//
//   g = grad * grad_scale;  m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2
//   master -= lr * (m * first_correction / (sqrt(v * second_correction) + eps) + decay * master)
//   parameter = rounded master
//
// The kernel reads all values that change from step to step from StepScalars on the device (grad_norm.h); a skipped
// step changes nothing.
//
// Shapes    master, m, v, grad: (elements) float; parameter: (elements) T, the same memory as master when T is float;
//           segments: ascending, the last one ends at `elements`; elements a multiple of 16.
// Numerics  in float; rounding to T is to nearest, or stochastic if requested.
// Traffic   elements * (28 + sizeof(T)) bytes in bf16, 28 in fp32.
// Source    Loshchilov, Hutter 2019, arXiv 1711.05101.
#pragma once
#include "kernels/device/types.h"

namespace kernels {

struct StepScalars;

// One tensor: the elements from the previous segment's end up to `end`.
struct DecaySegment {
    std::int64_t end;     // a multiple of 16
    std::int32_t decays;  // 0 or 1
};

// How bf16 parameters are rounded from their master weights: to nearest, or stochastically (random.h). The random bits
// depend only on the seed, the number of the update (StepScalars::adam_step) and the element's index among all
// parameters, so a repeated update, or one on several ranks, is bit-identical.
struct Rounding {
    bool stochastic = false;
    std::uint64_t seed = 0;
    std::int64_t first_element = 0;  // index of `parameter`'s first element, a multiple of 16
};

template <class T>
struct AdamW {
    std::span<T> parameter;
    std::span<float> master, m, v;
    std::span<const float> grad;
    std::span<const DecaySegment> segments;
    std::span<const StepScalars> scalars;  // (1)
    float beta1, beta2, eps, weight_decay;
    Rounding rounding{};  // of bf16
    // v was frozen by 1-bit Adam: it does not change and includes its bias correction. Elements with v == 0 are masked:
    // their m becomes 0.
    bool frozen = false;
};

// Enqueues on `stream`. Throws Error if a span is too short, or a length or `first_element` is not a multiple of 16.
template <class T>
void adamw(const AdamW<T>& op, StreamRef stream);

// parameter = rounded master, bit-identical to the result of the update counted in `scalars`: sets the parameters when
// a run starts or resumes.
struct RoundParameters {
    std::span<bf16> parameter;
    std::span<const float> master;
    std::span<const StepScalars> scalars;  // (1)
    Rounding rounding;
};
// Enqueues on `stream`. Throws like adamw.
void round_parameters(const RoundParameters& op, StreamRef stream);

}  // namespace kernels
