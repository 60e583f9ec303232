// batch_growth.cpp - when the tokens of a step double
#include "llmc/run/control/batch_growth.h"

namespace llmc {

std::optional<BatchChange> BatchGrowth::measured(std::int64_t step, const NoiseScale::Estimate& noise,
                                                 std::int64_t valid_targets) {
    const std::int64_t tokens = steps_.at(step).positions, since = steps_.last_change();
    if (steps_.total && step + 2 >= *steps_.total) return {};  // it would have no step
    if (2 * tokens > settings_.most || step < settings_.warmup_steps || step + 1 < since + kStepsOfASize) return {};
    const double at_least = noise.at_least / double(valid_targets);  // in steps; NaN compares false
    const bool above = noise.state != NoiseScale::State::warming && at_least >= 2 * settings_.kappa;
    in_a_row_ = above ? in_a_row_ + 1 : 0;
    if (in_a_row_ < kInARow) return {};
    in_a_row_ = 0;
    const BatchChange change{.step = step + 2, .tokens = 2 * tokens};
    steps_.change(change);
    return change;
}

}  // namespace llmc
