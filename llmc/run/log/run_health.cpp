// run_health.cpp - the rules of the warnings
#include "llmc/run/log/run_health.h"

#include <algorithm>
#include <cstdio>
#include <limits>
#include <utility>

namespace llmc {
namespace {

constexpr const char* kSeeHealth = " (llmc/RUN_HEALTH.md)";

std::string loss_text(double loss) {
    char text[32];
    std::snprintf(text, sizeof text, "%.4g", loss);
    return text;
}

}  // namespace

// Twice the lowest loss; but at least 1 above it, since losses near 0, of a batch that is learned by heart, vary more.
double RunHealth::high_loss() const {
    const double worse_than_random =
        vocabulary_ > 0 ? std::log(double(vocabulary_)) + 1 : std::numeric_limits<double>::infinity();
    if (state_.lowest_after < 0) return worse_than_random;
    return std::min(worse_than_random, state_.lowest_loss + std::max(state_.lowest_loss, 1.0));
}

std::optional<RunHealth::Warning> RunHealth::step(std::int64_t number, double loss) {
    const double limit = high_loss();
    if (!(loss <= limit) && number > warmup_steps_) ++state_.high_steps;
    else state_.high_steps = 0;
    if (std::isfinite(loss)) {
        state_.loss_sum += loss;
        ++state_.losses;
        if (state_.lowest_after < 0 || loss < state_.lowest_loss) {
            state_.lowest_loss = loss;
            state_.lowest_after = number - 1;
        }
    }
    if (state_.high_steps < kHighSteps || std::exchange(warned_high_, true)) return {};
    return Warning{"loss is high",
                   "the loss has been above " + loss_text(limit) + " for " + std::to_string(kHighSteps) +
                       " steps (step " + std::to_string(number) + ": " + loss_text(loss) + "; lowest: " +
                       loss_text(state_.lowest_loss) + " in step " + std::to_string(state_.lowest_after + 1) +
                       "): the run diverges; stop it, and use a lower --lr, such as a third, or more --warmup-steps" +
                       kSeeHealth};
}

RunHealth::Validated RunHealth::validation(std::int64_t steps, double loss) {
    const std::int64_t losses = std::exchange(state_.losses, 0);
    const double sum = std::exchange(state_.loss_sum, 0.0), mean = losses > 0 ? sum / double(losses) : 0;
    state_.validation_failed = !std::isfinite(loss);
    ++state_.validations_since_best;
    if (state_.validation_failed) {
        if (std::exchange(warned_failed_, true)) return {false, {}};
        return {false, Warning{"validation is not finite",
                               "the validation loss is not finite: the model has diverged; stop the run, and resume "
                               "from an earlier checkpoint with a lower --lr" + std::string(kSeeHealth)}};
    }
    const bool first = state_.best_validation_after < 0;
    if (first || loss < state_.best_validation) {
        state_.best_validation = loss;
        state_.best_validation_after = steps;
        state_.validations_since_best = state_.worse_validations = 0;
        state_.mean_at_best = mean;
        state_.has_mean_at_best = losses > 0;
        return {!first, {}};
    }
    // 1 %: less is noise of the weights from step to step.
    const bool worse = loss > 1.01 * state_.best_validation;
    const bool learns = losses > 0 && state_.has_mean_at_best && mean < state_.mean_at_best;
    state_.worse_validations = worse && learns ? state_.worse_validations + 1 : 0;
    if (state_.worse_validations < kWorseValidations || std::exchange(warned_overfitting_, true)) return {false, {}};
    return {false, Warning{"overfitting",
                           "the model overfits: the last " + std::to_string(kWorseValidations) +
                               " validations are worse than the best one (" + loss_text(state_.best_validation) +
                               " after step " + std::to_string(state_.best_validation_after) +
                               ") while the training loss falls; use the checkpoint of that step (--keep-best), or "
                               "more data, fewer steps or a smaller model" + kSeeHealth}};
}

std::int64_t RunHealth::good_after() const {
    return std::max(state_.lowest_after, state_.best_validation_after);
}

}  // namespace llmc
