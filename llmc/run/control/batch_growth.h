// batch_growth.h - --batch-schedule auto: doubles the tokens of a step when the gradient noise scale is large enough
//
//   sizes      D, 2 D, 4 D, ... up to `most`, where D is the size of the first step; a size never decreases
//   decision   the lower bound of the noise scale (noise_scale.h's at_least) is at least kappa times the doubled size
//              in kInARow consecutive measurements, after the warm-up and at least kStepsOfASize steps of a size
//   effect     from the second step after the last of these: on a GPU a step's results come one step late
//
// The measurements are sums that are equal on all ranks, so all decide alike without a message. A decision is a change
// of the StepPlan, which checkpoints keep: a resumed run does not decide it again. Source: McCandlish et al. 2018,
// arXiv 1812.06162 (the noise scale); Merrill et al. 2025, arXiv 2505.23971 (doublings).
#pragma once
#include <optional>
#include <string>

#include "llmc/data/step_plan.h"
#include "llmc/run/log/noise_scale.h"

namespace llmc {

class BatchGrowth {
public:
    static constexpr int kInARow = 20, kStepsOfASize = 100;
    struct Settings {
        std::int64_t most = 0;  // tokens; 0: the size does not change
        double kappa = 1;
        std::int64_t warmup_steps = 0;
    };
    // `in_a_row`: at the end of the run that is resumed. `steps` must outlive it.
    BatchGrowth(const Settings& settings, StepPlan& steps, int in_a_row)
        : settings_(settings), steps_(steps), in_a_row_(in_a_row) {}

    // The noise scale after the step that followed `step` others and made an update of this many valid targets. Returns
    // what it changes. Call it in the order of steps, before the second one after it begins.
    std::optional<BatchChange> measured(std::int64_t step, const NoiseScale::Estimate& noise,
                                        std::int64_t valid_targets);
    int in_a_row() const { return in_a_row_; }
    // A --batch-schedule with the sizes of the first `steps` steps; empty: sizes do not grow.
    std::string schedule(std::int64_t steps) const {
        return settings_.most > 0 ? steps_.schedule_text(steps) : std::string();
    }

private:
    Settings settings_;
    StepPlan& steps_;
    int in_a_row_;
};

}  // namespace llmc
