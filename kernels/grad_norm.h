// grad_norm.h - squared norms of a gradient by module, what the ranks tell each other of a step, and what the
// optimizer scales with
//
//   squared_norms: partial[i] = sum of squares of tile i of `values`, and rounded = values in bf16 if asked for
//   module_sums: sums[m] (+)= factor * sum of the partials of module m
//   step_scalars: norm = kappa * sqrt(sum over ranks and modules), kappa = positions / valid targets;
//                 clip = min(1, max_norm / (norm + 1e-6)); scale = kappa * clip
//
// Everything a step decides (skip, clip, bias correction) is decided on the device from sums over all ranks, and from
// those of the steps before: the host never waits, and every rank decides alike, since all add the same numbers in the
// same order.
//
// Shapes    values: (elements) float; rounded: (elements) bf16 or none; partial: (tiles) doubles; sums: (modules)
//           doubles.
// Numerics  squares in float over short runs, sums of runs in double, in an order that depends on the tiles alone;
//           rounded to nearest into bf16.
// Traffic   elements * 4 bytes, 6 with `rounded`: a pass for each would move 10.
// Source    Pascanu et al. 2013, arXiv 1211.5063 (clipping); shared normaliser: llmc/README.md, "Token-exact loss".
#pragma once
#include <vector>

#include "kernels/device/types.h"
#include "kernels/outlier_window.h"

namespace kernels {

// A stretch of an array, one block's work. Its first element lies at a multiple of 16.
struct NormTile {
    std::int64_t first, size;
};
// Cuts elements [first, first + size) into tiles, for plans made on the host. 64 KiB a tile: enough blocks for a large
// GPU, few partial sums.
void append_tiles(std::vector<NormTile>& tiles, std::int64_t first, std::int64_t size);

struct SquaredNorms {
    std::span<double> partial;        // overwritten
    std::span<const float> values;
    std::span<const NormTile> tiles;  // on the device, within `values`
    // what gradient_copy<bf16, float> would make of the tiles' elements, the others left alone; empty: not wanted
    std::span<bf16> rounded = {};
};
// Enqueues on `stream`. Throws Error if `partial` is too short, or `rounded` neither empty nor as long as `values`.
void squared_norms(const SquaredNorms& op, StreamRef stream);

struct ModuleSums {
    std::span<double> sums;
    std::span<const double> partial;
    std::span<const std::int32_t> module_start;  // (modules + 1): partials of module m are [start[m], start[m + 1])
    double factor = 1;
    bool accumulate = false;
};
void module_sums(const ModuleSums& op, StreamRef stream);

// What one rank knows of a step: a row of doubles, which all ranks exchange. It begins with these; the norms follow.
// The noise scale compares the whole batch with small ones, of T_i tokens and with the gradient A_i.
struct RankSumsHeader {
    double loss_sum;
    // Counts are exact: they stay far below 2^53.
    double valid_targets;
    double small_tokens;   // sum of T_i
    double small_batches;  // how many there are
    double sketched;       // 1: norms[0] is an estimate for all modules together, the others are 0
};
// A row, or the sum of all ranks' rows, where it lies: on the device or on the host.
template <class Header, class Double>
struct RankSumsView {
    Header* header;
    std::span<Double> norms;        // (modules): |.|^2 of this rank's shards of the reduced gradient
    std::span<Double> small_norms;  // (modules): sum of |A_i|^2 / T_i
};
using RankSums = RankSumsView<RankSumsHeader, double>;
using ConstRankSums = RankSumsView<const RankSumsHeader, const double>;

// Doubles of a row, a multiple of what the communicator cuts shards at.
constexpr std::size_t rank_sums_size(std::size_t modules) {
    return (sizeof(RankSumsHeader) / sizeof(double) + 2 * modules + 31) / 32 * 32;
}
// Views of a row. Throw Error unless it has rank_sums_size(modules) doubles.
RankSums rank_sums(std::span<double> row, std::size_t modules);
ConstRankSums rank_sums(std::span<const double> row, std::size_t modules);

struct RankCounts {
    std::int64_t valid_targets = 0;                    // of this rank
    std::int64_t small_tokens = 0, small_batches = 0;  // of this rank's small batches
    bool sketched = false;
};
// Writes the counts into a row's header and leaves the rest.
void put_counts(const RankSums& row, const RankCounts& counts, StreamRef stream);

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
    double loss_z, norm_z;            // in the window (outlier_window.h); NaN: unknown
    double max_loss_z, max_norm_z;    // above which this step was skipped; 0: never
    float largest_update;             // of an element, without decay, in a compressed step (onebit_adam.h); else NaN
};
enum Skip : std::int32_t { kNoSkip = 0, kSkipNoTargets = 1, kSkipNonFinite = 2, kSkipOutlier = 3 };
constexpr bool is_loss_outlier(const StepScalars& x) { return x.max_loss_z > 0 && x.loss_z > x.max_loss_z; }
constexpr bool is_norm_outlier(const StepScalars& x) { return x.max_norm_z > 0 && x.norm_z > x.max_norm_z; }

struct StepScalarsInput {
    std::span<StepScalars> scalars;          // (1), in and out
    std::span<OutlierWindow> window;         // (1), in and out
    std::span<double> totals;                // (rank_sums_size(modules)): the sum of all rows, for the host
    std::span<const double> rank_sums;       // a row of each rank, in their order
    std::size_t modules;
    std::int64_t positions;                  // K: gradients were accumulated with weight 1 / K
    float learning_rate, max_norm, beta1, beta2;  // max_norm <= 0: no clipping
    double max_loss_z = 0, max_norm_z = 0;   // a step whose loss or norm has a larger z is an outlier; 0: none is
};
// Enqueues on `stream`. A step without valid targets, with a non-finite loss or norm, or that is an outlier is skipped:
// adam_step and window stay, skip says why. The window takes every other step, whether or not any z is bounded.
void step_scalars(const StepScalarsInput& op, StreamRef stream);

}  // namespace kernels
