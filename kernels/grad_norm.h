// grad_norm.h - the global gradient norm, and the scalars that one optimizer step is scaled by
//
//   squared_norm: partial[i] = sum of squares of block i's share of `values`
//   step_scalars: norm = kappa * sqrt(sum partial), kappa = positions / valid targets; clip = min(1, max_norm / (norm + 1e-6)); scale = kappa * clip
//
// Everything a step decides (skip, clip, bias correction) is decided on the device from reduced values only: the host never waits,
// and every rank decides alike.
//
// Shapes    values: (elements) float; partial: squared_norm_partials() doubles.
// Numerics  squares in float over short runs, sums of runs in double, in an order that depends on `elements` alone.
// Traffic   elements * 4 bytes.
// Source    Pascanu et al. 2013, arXiv 1211.5063 (clipping); shared normaliser: README, section "Token-exact loss".
#pragma once
#include "kernels/types.h"

namespace kernels {

int squared_norm_partials();
// Enqueues on `stream`; overwrites `partial`.
void squared_norm(std::span<double> partial, std::span<const float> values, Stream stream);

// Lives on the device from step to step; copied to the host for the log, one step late.
struct StepScalars {
    // Decided by step_scalars, read by the optimizer.
    std::int64_t adam_step;       // updates made so far, this one included unless it is skipped
    float learning_rate;
    float grad_norm;              // of the mean loss over valid targets, before clipping; NaN if there are none
    float clip;                   // coefficient in (0, 1]
    float grad_scale;             // what the optimizer multiplies the accumulated gradient with
    float first_correction;       // 1 / (1 - beta1^adam_step)
    float second_correction;      // 1 / (1 - beta2^adam_step)
    std::int32_t skip;            // Skip
    std::int32_t skipped_steps;   // so far
    double loss;                  // mean over the valid targets of this step; NaN if there are none
    std::int64_t valid_targets;
};
enum Skip : std::int32_t { kNoSkip = 0, kSkipNoTargets = 1, kSkipNonFinite = 2 };

struct StepScalarsInput {
    std::span<StepScalars> scalars;          // (1), in and out
    std::span<const double> loss_sum;        // (1) nats over all valid targets
    std::span<const double> squared_partial; // of the accumulated gradient
    std::int64_t positions;                  // K: gradients were accumulated with weight 1 / K
    std::int64_t valid_targets;              // N
    float learning_rate, max_norm, beta1, beta2;  // max_norm <= 0: no clipping
};
// Enqueues on `stream`. A step without valid targets or with a non-finite loss or norm is skipped: adam_step stays, skip says why.
void step_scalars(const StepScalarsInput& op, Stream stream);

}  // namespace kernels
