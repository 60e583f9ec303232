// grad_norm.h - squared norms of a gradient, the sums that ranks exchange in a step, and the scale factors of the
// optimizer
//
//   squared_norms: partial[i] = sum of squares of tile i of `values`, and rounded = values in bf16 if requested
//   range_sums: sums[i] (+)= factor * sum of the partials of range i
//   step_scalars: norm = kappa * sqrt(sum over ranks), kappa = positions / valid targets;
//                 clip = min(1, max_norm / (norm + 1e-6)); scale = kappa * clip
//
// All decisions of a step (skip, clip, bias correction) are made on the device from sums over all ranks, and from those
// of earlier steps: the host never waits, and all ranks decide identically, because they add the same numbers in the
// same order.
//
// Shapes    values: (elements) float; rounded: (elements) bf16 or none; partial: (tiles) doubles; sums: (ranges)
//           doubles.
// Numerics  squares in float over short runs, sums of runs in double, in an order that depends only on the tiles;
//           rounding to bf16 is to nearest.
// Traffic   elements * 4 bytes, 6 with `rounded`; two separate passes would move 10.
// Source    Pascanu et al. 2013, arXiv 1211.5063 (clipping); shared normaliser: llmc/RUNS.md, "Token-exact loss".
#pragma once
#include <cstdint>
#include <vector>

#include "kernels/device/types.h"

namespace kernels {

// A range of an array, the work of one block. `first` is a multiple of 16.
struct NormTile {
    std::int64_t first, size;
};
// Cuts elements [first, first + size) into tiles, for plans made on the host. 64 KiB per tile: enough blocks for a
// large GPU, few partial sums.
void append_tiles(std::vector<NormTile>& tiles, std::int64_t first, std::int64_t size);

struct SquaredNorms {
    std::span<double> partial;        // overwritten
    std::span<const float> values;
    std::span<const NormTile> tiles;  // on the device, within `values`
    // the tiles' elements as gradient_copy<bf16, float> rounds them, other elements unchanged; empty: not requested
    std::span<bf16> rounded = {};
};
// Enqueues on `stream`. Throws Error if `partial` is too short, or if `rounded` is neither empty nor as long as
// `values`.
void squared_norms(const SquaredNorms& op, StreamRef stream);

struct RangeSums {
    std::span<double> sums;
    std::span<const double> partial;
    std::span<const std::int32_t> range_start;  // (ranges + 1): partials of range i are [start[i], start[i + 1])
    double factor = 1;
    bool accumulate = false;
};
// Enqueues on `stream`. Throws Error unless range_start has one entry more than sums.
void range_sums(const RangeSums& op, StreamRef stream);

// One rank's contribution to a step, a row that all ranks exchange, or the sum of all rows. Small batches, which the
// noise scale compares with the whole one: batch i has T_i tokens and gradient A_i.
struct RankSums {
    double loss_sum;
    // Counts are exact: they stay far below 2^53.
    double valid_targets;
    double small_tokens;   // sum of T_i
    double small_batches;  // their number
    double norm;           // |.|^2 of this rank's shards of the reduced gradient
    double small_norms;    // sum of |A_i|^2 / T_i
    double unused[26];     // 256 bytes, so that rows are equal shards of their all-gather
};
static_assert(sizeof(RankSums) == 256);

struct RankCounts {
    std::int64_t valid_targets = 0;                    // of this rank
    std::int64_t small_tokens = 0, small_batches = 0;  // of this rank's small batches
};
// Writes the counts into a row; the rest does not change.
void put_counts(RankSums* row, const RankCounts& counts, StreamRef stream);

// The losses and gradient norms of the most recent updates, to detect steps far above them:
//
//   mean = sum x_i / N;  deviation = max(sqrt(sum (x_i - mean)^2 / N), kMinDeviation |mean|);  N = kSize
//   z = (x - mean) / deviation for the current step, which is not one of the x_i; NaN, which is not an outlier, until
//       the window holds N steps, and if the deviation is 0 (all values are 0)
//
// The window stays on the device from step to step. The ranks' windows are bit-identical, because all ranks fill them
// from the same sums. Only steps that make an update enter: never a non-finite value or an outlier.
//
// Numerics  in double, recomputed in each step from the stored values, oldest first: there is no running sum that could
//           drift, and a window that is saved and loaded continues bit-identically, whatever the index of its oldest
//           value.
// Traffic   2 KiB per step.
// Source    llm.c llmc/outlier_detector.h has the same size and also decides nothing until it is full; it counts the
//           current step among the N.
struct OutlierWindow {
    static constexpr int kSize = 128;
    // The effect of rounding on a norm, and more than its effect on a loss: after steps that differ only
    // by rounding, the next step is not an outlier.
    static constexpr double kMinDeviation = 1e-6;

    std::int32_t count = 0;  // number of steps in the window
    std::int32_t next = 0;   // index of the next step to write: the oldest one, once the window is full
    double losses[kSize] = {}, norms[kSize] = {};  // of the same steps; norms before clipping
};

// Stays on the device from step to step; copied to the host for the log, one step late.
struct StepScalars {
    // Written by step_scalars, read by the optimizer.
    std::int64_t adam_step;       // updates so far, with this one unless it is skipped
    float learning_rate;
    float grad_norm;              // of the mean loss over valid targets, before clipping; NaN if there are none
    float clip;                   // coefficient in (0, 1]
    float grad_scale;             // factor that the optimizer applies to the accumulated gradient
    float first_correction;       // 1 / (1 - beta1^adam_step)
    float second_correction;      // 1 / (1 - beta2^(adam_step + second_surplus))
    std::int32_t skip;            // Skip
    std::int32_t skipped_steps;   // so far
    double loss;                  // mean over the valid targets of this step; NaN if there are none
    std::int64_t valid_targets;
    double loss_z, norm_z;            // in the OutlierWindow; NaN: unknown
    double max_loss_z, max_norm_z;    // thresholds above which a step is skipped; 0: off
    double second_surplus;            // the sum of second_power - 1 over the updates so far
    float largest_update;             // of an element, without decay (onebit_adam.h); NaN: not a compressed step
};
enum Skip : std::int32_t { kNoSkip = 0, kSkipNoTargets = 1, kSkipNonFinite = 2, kSkipOutlier = 3 };
constexpr bool is_loss_outlier(const StepScalars& x) { return x.max_loss_z > 0 && x.loss_z > x.max_loss_z; }
constexpr bool is_norm_outlier(const StepScalars& x) { return x.max_norm_z > 0 && x.norm_z > x.max_norm_z; }

struct StepScalarsInput {
    std::span<StepScalars> scalars;          // (1), in and out
    std::span<OutlierWindow> window;         // (1), in and out
    std::span<RankSums> totals;              // (1): the sum of all rows, for the host
    std::span<const RankSums> rank_sums;     // one row per rank, in rank order
    std::int64_t positions;                  // K: gradients were accumulated with weight 1 / K
    float learning_rate, max_norm, beta1, beta2;  // max_norm <= 0: no clipping
    double second_power = 1;                 // the second moment decays by beta2 to this power
    double max_loss_z = 0, max_norm_z = 0;   // a step whose loss or norm has a larger z is an outlier; 0: off
};
// Enqueues on `stream`. Skips a step that has no valid targets, a non-finite loss or norm, or is an outlier: adam_step
// and window do not change, and `skip` holds the reason. All other steps enter the window, even if outlier detection is
// off.
void step_scalars(const StepScalarsInput& op, StreamRef stream);

}  // namespace kernels
