// step_noise.h - the noise scale (noise_scale.h) of the gradient, measured in every step; the choice of the small
// batches that are compared with the whole batch
#pragma once
#include <string>

#include "llmc/base/names.h"
#include "llmc/base/option.h"
#include "llmc/model/step_sums.h"
#include "llmc/run/log/noise_scale.h"

namespace llmc {

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
