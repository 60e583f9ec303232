// noise_scale.h - the gradient noise scale B_simple = tr(Sigma) / |G|^2: the batch at which noise and signal have the
// same power
//
//   The gradient of one valid token has mean G and covariance Sigma; the mean over a batch of B tokens has E|g_B|^2 =
//   |G|^2 + tr(Sigma) / B. So the squared norms of a small and a big batch, at the same parameters and before clipping,
//   give unbiased estimates of both unknowns:
//       |G|^2 = (B n_B - b n_b) / (B - b),    tr(Sigma) = (n_b - n_B) / (1 / b - 1 / B)
//   Either may be negative in a single step. Each is averaged over steps, and only the averages are divided.
//
// Unit: valid tokens. Tokens of one sequence are correlated; multiply the result by sequences per token for sequences,
// the independent unit. Plain host code; the caller passes sums that are the same on all ranks. Source: McCandlish et
// al. 2018, arXiv 1812.06162.
#pragma once
#include <cstdint>
#include <string>

#include "llmc/base/names.h"
#include "llmc/base/option.h"
#include "llmc/model/step_sums.h"

namespace llmc {

// Small batches: the parts of a step whose gradients were measured separately, ranks or micro-batches. Parts without a
// valid token are not included.
struct SmallBatchNorms {
    // sum over batches of |U_i|^2 / T_i, U_i the sum of the gradients of the T_i valid tokens of batch i
    double norms = 0;
    std::int64_t tokens = 0;   // sum of T_i
    std::int64_t batches = 0;  // their number
};

// One step's unbiased estimates.
struct NoiseMeasurement {
    double signal;  // |G|^2
    double noise;   // tr(Sigma) of one token
};
// `norm`: squared norm of the mean gradient over all `tokens` valid tokens of the step. Throws Error unless the small
// batches are smaller than the step: callers choose an estimator that is possible for the run.
NoiseMeasurement measure_noise(const SmallBatchNorms& small, double norm, std::int64_t tokens);

// The state that a checkpoint stores.
struct NoiseAverages {
    std::int64_t count = 0;  // of measurements, not of steps
    double signal = 0, noise = 0, signal_squared = 0, noise_squared = 0, product = 0;  // without bias correction
};

// Exponential moving averages over the measurements of successive steps.
class NoiseScale {
public:
    enum class State {
        warming,  // fewer than 20 measurements
        ok,
        weak,     // |G|^2 is within two standard deviations of 0: only the bound is meaningful
        invalid,  // an average is not positive, or there is no measurement: no noise scale
    };
    struct Estimate {
        State state;
        // averages of |G|^2 and tr(Sigma), bias-corrected; NaN: no measurement
        double signal, noise;
        double scale;               // noise / signal, in valid tokens; NaN where invalid
        // standard deviation of `scale` divided by `scale`, statistical only (successive gradients are correlated);
        // NaN: unknown
        double relative_deviation;
        double at_least;            // noise / (signal + 2 deviations): a one-sided bound on `scale`; NaN: unknown
    };

    explicit NoiseScale(double beta = 0.99, const NoiseAverages& averages = {});  // throws Error unless 0 <= beta < 1
    void add(const NoiseMeasurement& measurement);  // ignored if not finite
    Estimate estimate() const;
    const NoiseAverages& averages() const { return averages_; }

private:
    double beta_;
    NoiseAverages averages_;
};
const char* name_of(NoiseScale::State state);

// ---- measured in every step; the choice of the small batches that are compared with the whole batch

enum class NoiseEstimator { off, automatic, rank, micro };
inline constexpr Named<NoiseEstimator> kNoiseEstimators[] = {{"off", NoiseEstimator::off},
                                                             {"auto", NoiseEstimator::automatic},
                                                             {"rank", NoiseEstimator::rank},
                                                             {"micro", NoiseEstimator::micro}};

struct NoiseSettings {
    NoiseEstimator estimator = NoiseEstimator::automatic;
    double beta = 0.99;  // of the averages
};
void add_options(OptionList& list, NoiseSettings& settings);

// The small batches for --noise-scale off, auto, rank or micro. `note`: a line to print once; empty: none.
//   ZeRO stages 0 and 1   rank: the gradient of each rank (needs 2 ranks); micro: the gradient of each rank's first
//                         micro-batch (needs 2 micro-batches per step)
//   ZeRO stage 2          micro: the gradient of every micro-batch, because no rank ever has its whole gradient
// auto prefers rank, whose estimate varies less, and is off if there is nothing to compare. Throws Error if the
// requested estimator is not possible.
struct NoiseChoice {
    SmallBatches small_batches;
    std::string note;
};
NoiseChoice choose_noise_estimator(NoiseEstimator requested, int stage, int ranks, int micro_batches);

// "rank" or "micro", the values of the flag; empty: none.
const char* name_of(SmallBatches small_batches);

class StepNoise {
public:
    explicit StepNoise(double beta) : beta_(beta), noise_(beta) {}

    // `totals`: the sums over all ranks of a step that was not skipped, whose gradients were accumulated with weight 1
    // / positions. A step with all its targets in one small batch has nothing to compare and is ignored.
    void add(const kernels::RankSums& totals, std::int64_t positions);

    // From a checkpoint, before steps of `relative` times the tokens of the run's first one. The averages decay by
    // beta^relative, as much per token.
    void restore(const NoiseAverages& averages, double relative = 1);
    // The same, and forgets all measurements.
    void restart(double relative) { restore({}, relative); }

    const NoiseScale& scale() const { return noise_; }

private:
    double beta_;
    NoiseScale noise_;
};

}  // namespace llmc
