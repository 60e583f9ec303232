// onebit_adam.h - 1-bit Adam: the update from the ranks' mean at 1 bit per element (onebit.h), with a frozen second
// moment
//
//   m = y (space momentum) or y * D (space update), D = sqrt(v) + eps
//   master -= lr * (m * first_correction / D + decay * master);  parameter = rounded master
//   worker error = z - a * sign(z)
//
// v is frozen with its bias correction applied. Elements with v == 0 are masked: m and the error are 0, and only weight
// decay changes the master weight. The kernel reads all values that change from step to step from StepScalars on the
// device; a skipped step changes nothing, including the errors.
//
// Numerics  in float; rounding to T is to nearest, or stochastic if requested.
// Traffic   bytes per element, plus 1/8 for the bits: 24 + sizeof(T) in bf16, 24 in fp32; unpacking the mean and
//           then AdamW would move 40.
// Source    Tang et al. 2021, arXiv 2102.02888, with decoupled decay, bias correction and the mask.
#pragma once
#include "kernels/adamw.h"
#include "kernels/grad_norm.h"
#include "kernels/onebit.h"

namespace kernels {

// Sets finite[0] to 1, or to 0 if the step is skipped. Call it before onebit_check_scales.
void onebit_admit(std::span<std::int32_t> finite, std::span<const StepScalars> scalars, StreamRef stream);
// Call it after the last onebit_check_scales. If a scale is not finite, the step is skipped as kSkipNonFinite and
// adam_step restored; the outlier window keeps the step's loss and norm.
void onebit_skip_non_finite(std::span<StepScalars> scalars, std::span<const std::int32_t> finite, StreamRef stream);

inline constexpr std::int32_t kUnchanged = 2;  // DecaySegment::decays of tensors that onebit_adam does not touch

template <class T>
struct OnebitAdam {
    OnebitLayout layout;                       // of a bucket whose padding is masked; n and chunk multiples of 32
    std::span<const OnebitTile> tiles;
    // The next three are empty if this rank has not compressed the bucket: then only the update is made.
    std::span<const float> compensated;        // (n): z
    std::span<float> error;                    // (n_pad): out, the worker's error
    std::span<const std::uint32_t> messages;   // (ranks, message_words): sent
    std::span<const std::uint32_t> replies;    // (ranks, message_words): received
    std::span<const std::uint32_t> active;     // of the bucket
    bool one = false;                          // the value of OnebitScales::one for the workers' scales
    std::span<T> parameter;                    // (n); the same memory as master where T is float
    std::span<float> master, m;                // (n)
    std::span<const float> v;                  // (n): the frozen second moment
    std::span<float> largest;                  // (tiles): out, the largest |lr * m * first_correction / D| of a tile
    std::span<const DecaySegment> segments;    // of the flat array, ends at multiples of 32
    std::span<const StepScalars> scalars;      // (1)
    float eps, weight_decay;
    bool update_space = false;
    Rounding rounding{};                       // first_element: of the bucket in the flat array, a multiple of 32
};
// All functions enqueue on `stream`. Throws Error if an array is too short for the layout.
template <class T>
void onebit_adam(const OnebitAdam<T>& op, StreamRef stream);

// StepScalars::largest_update = the largest of `largest`.
void onebit_largest(std::span<StepScalars> scalars, std::span<const float> largest, StreamRef stream);

// shadow = beta shadow + (1 - beta) (grad * grad_scale)^2, unless the step is skipped. A slowly decaying second moment,
// maintained in addition to AdamW's own, that the freeze uses.
struct ShadowMoment {
    std::span<float> shadow;                   // (elements)
    std::span<const float> grad;               // (elements)
    std::span<const StepScalars> scalars;      // (1)
    float beta;
};
void shadow_moment(const ShadowMoment& op, StreamRef stream);

// out = factor * in: the bias correction of the frozen moment. `out` may be `in`.
void scale_moment(std::span<float> out, std::span<const float> in, float factor, StreamRef stream);

}  // namespace kernels
