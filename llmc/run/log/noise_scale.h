// noise_scale.h - how noisy the gradient is: B_simple = tr(Sigma) / |G|^2, the batch at which noise and signal have the
// same power
//
//   The gradient of one valid token has mean G and covariance Sigma; the mean over a batch of B tokens has E|g_B|^2 =
//   |G|^2 + tr(Sigma) / B. So the squared norms of a small and a big batch, taken at the same parameters and before
//   clipping, give both unknowns without bias:
//       |G|^2 = (B n_B - b n_b) / (B - b),    tr(Sigma) = (n_b - n_B) / (1 / b - 1 / B)
//   Either may come out negative in a single step. They are averaged over steps as they are, each for itself, and only
//   then divided.
//
// Unit: valid tokens. Tokens of one sequence are correlated: the result times sequences per token is the one in
// sequences, the independent unit. Plain host code; the caller brings sums that are the same on all ranks. Source:
// McCandlish et al. 2018, arXiv 1812.06162.
#pragma once
#include <cstdint>

namespace llmc {

// Small batches: parts of a step whose gradients were seen separately: ranks, or micro-batches. Those without a valid
// token take no part.
struct SmallBatchNorms {
    // sum over batches of |U_i|^2 / T_i, U_i the sum of the gradients of the T_i valid tokens of batch i
    double norms = 0;
    std::int64_t tokens = 0;   // sum of T_i
    std::int64_t batches = 0;   // how many
};

// One step's unbiased estimates.
struct NoiseMeasurement {
    double signal;  // |G|^2
    double noise;   // tr(Sigma) of one token
};
// `norm`: squared norm of the mean gradient over all `tokens` valid tokens of the step. They must be smaller than the
// step: two at least, or a part of it. Throws Error otherwise; callers choose an estimator that the run can have.
NoiseMeasurement measure_noise(const SmallBatchNorms& small, double norm, std::int64_t tokens);

// What a checkpoint must hold for a resumed run to go on with.
struct NoiseAverages {
    std::int64_t count = 0;  // of measurements taken, not of steps
    double signal = 0, noise = 0, signal_squared = 0, noise_squared = 0, product = 0;  // not corrected
};

// Exponential moving averages over the measurements of successive steps.
class NoiseScale {
public:
    enum class State {
        warming,  // fewer than 20 measurements
        ok,
        weak,     // |G|^2 is within two standard deviations of 0: only the bound means something
        invalid,  // an average is not positive (or nothing was measured): no noise scale
    };
    struct Report {
        State state;
        // averages of |G|^2 and tr(Sigma), corrected for their start at 0; NaN: nothing was measured
        double signal, noise;
        double scale;               // noise / signal, in valid tokens; NaN where invalid
        // standard deviation of `scale` over itself, statistical only (successive gradients are correlated); NaN:
        // unknown
        double relative_deviation;
        double at_least;            // noise / (signal + 2 deviations): a one-sided bound on `scale`; NaN: unknown
    };

    explicit NoiseScale(double beta = 0.99, const NoiseAverages& averages = {});  // throws Error unless 0 <= beta < 1
    void add(const NoiseMeasurement& measurement);  // one that is not finite is dropped
    Report report() const;
    const NoiseAverages& averages() const { return averages_; }

private:
    double beta_;
    NoiseAverages averages_;
};
const char* name_of(NoiseScale::State state);

}  // namespace llmc
