// module_noise.h - the noise scale (noise_scale.h) of the whole model and of each module, measured in every step; the
// choice of the small batches that are compared with the whole batch
#pragma once
#include <string>
#include <vector>

#include "llmc/model/step_sums.h"
#include "llmc/run/log/noise_scale.h"
#include "llmc/run/options/options.h"

namespace llmc {

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

class ModuleNoise {
public:
    ModuleNoise(std::vector<std::string> modules, double beta);

    // `totals`: the sums over all ranks of a step that was not skipped, whose gradients were accumulated with weight 1
    // / positions. A step with all its targets in one small batch has nothing to compare and is ignored.
    void add(const kernels::ConstRankSums& totals, std::int64_t positions);

    // Whether the last step was measured by module. If gradients stay local, only the whole model is measured.
    bool by_module() const { return by_module_; }

    // For checkpoints: of the whole model, then of each module. restore() throws Error for another number of averages.
    std::vector<NoiseAverages> averages() const;
    void restore(const std::vector<NoiseAverages>& averages, double relative = 1);
    // Before steps of `relative` times the tokens of the run's first one: forgets all measurements. The averages decay
    // by beta^relative, as much per token.
    void restart(double relative);

    const NoiseScale& whole() const { return whole_; }
    const std::vector<std::string>& module_names() const { return names_; }
    const NoiseScale& module(std::size_t i) const { return modules_[i]; }

private:
    std::vector<std::string> names_;
    double beta_;
    bool by_module_ = true;
    NoiseScale whole_;
    std::vector<NoiseScale> modules_;
};

}  // namespace llmc
