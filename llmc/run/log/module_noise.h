// run_noise.h - the noise scale of a run (noise_scale.h): which gradients are compared with the whole batch's, and what
// a step's sums say of them
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "llmc/base/names.h"
#include "llmc/model/step_sums.h"
#include "llmc/run/noise_scale.h"

namespace llmc {

enum class NoiseEstimator { off, automatic, rank, micro };
inline constexpr Named<NoiseEstimator> kNoiseEstimators[] = {{"off", NoiseEstimator::off},
                                                             {"auto", NoiseEstimator::automatic},
                                                             {"rank", NoiseEstimator::rank},
                                                             {"micro", NoiseEstimator::micro}};

// What --noise-scale off, auto, rank or micro means for a run. `note` is worth telling once; empty: nothing.
//   stages 0 and 1   rank: each rank's gradient (needs 2 ranks);  micro: that of each rank's first micro-batch (needs 2
//                    micro-batches a step)
//   stage 2          micro: every micro-batch's, as a rank's sum never exists
// auto prefers rank, whose estimate varies less, and is off where nothing can be compared. Throws Error where what was
// asked for cannot be had.
struct NoiseChoice {
    SmallBatches small_batches;
    std::string note;
};
NoiseChoice choose_noise_estimator(NoiseEstimator asked, int stage, int ranks, int micro_batches);

// "rank" or "micro", as the flag calls it; empty: none.
const char* name_of(SmallBatches small_batches);

class RunNoise {
public:
    RunNoise(std::vector<std::string> modules, double beta);

    // `totals`: all ranks' sums of a step that was not skipped, its gradients accumulated with weight 1 / positions. A
    // step in which nothing can be compared, since all its targets lie in one small batch, is left out.
    void add(const kernels::ConstRankSums& totals, std::int64_t positions);

    // Whether the last step told modules apart. Where gradients stay local it does not: only the whole is measured.
    bool by_module() const { return by_module_; }

    // What a checkpoint holds: of the whole model, then of its modules. restore() throws Error for another number.
    std::vector<NoiseAverages> averages() const;
    void restore(const std::vector<NoiseAverages>& averages);

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
