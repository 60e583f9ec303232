// run_health.cpp - when a run warns, and when it fails
#include "llmc/run/control/run_health.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "kernels/base/error.h"
#include "llmc/base/number_text.h"
#include "llmc/weights/manifest.h"
#include "llmc/weights/step_folder.h"

namespace llmc {
namespace {

constexpr const char* kSeeHealth = " (llmc/RUN_HEALTH.md)";

// Of the entropy of random guesses: random weights are above all of it, and of a model that has only learned how often
// each token occurs 7.5 of GPT-2's 10.8 nats, and 3.1 of 5.5 of bytes, are left.
constexpr double kUntrained = 0.95;

std::string loss_text(double loss) { return format("%.4g", loss); }

}  // namespace

// Twice the lowest loss; but at least 1 above it, since losses near 0, of a batch that is learned by heart, vary more.
double RunHealth::high_loss() const {
    const double worse_than_random =
        settings_.vocabulary > 0 ? std::log(double(settings_.vocabulary)) + 1 : std::numeric_limits<double>::infinity();
    if (state_.lowest_after < 0) return worse_than_random;
    return std::min(worse_than_random, state_.lowest_loss + std::max(state_.lowest_loss, 1.0));
}

void RunHealth::restore(const TrainerState& state, bool counts_failed) {
    state_ = state.health;
    in_a_row_ = {counts_failed ? state.failed_in_a_row : 0, state.without_update};
}

bool RunHealth::agree(Communicator& ranks) {
    std::array<std::int64_t, 3> most{in_a_row_.failed, in_a_row_.without_update, failure_ != nullptr};
    ranks.host_reduce(most, HostReduction::max);
    in_a_row_ = {int(most[0]), int(most[1])};
    if (most[2] > 0 && !failure_)
        failure_ = std::make_exception_ptr(
            Error("the steps of a worker had no loss or gradient norm that is finite, or were outliers, for " +
                      counted(in_a_row_.failed > 0 ? in_a_row_.failed : in_a_row_.without_update, "step") +
                      " in a row: " + advice_after_divergence(), Blame::runtime));
    return failure_ != nullptr;
}

void RunHealth::rounds_skipped(std::int64_t made, int in_a_row) {
    if (in_a_row < kMostSkippedRounds || failure_) return;
    in_a_row_.failed = kMostFailedSteps;  // not saved
    failure_ = std::make_exception_ptr(
        Error("the mean of the workers' weights was not finite in " + std::to_string(in_a_row) +
                  " outer steps in a row, up to step " + std::to_string(made) +
                  ": the model has diverged and is not saved; " + advice_after_divergence(), Blame::runtime));
}

RunHealth::Warning RunHealth::step(std::int64_t number, const kernels::StepScalars& scalars) {
    count(number, scalars.skip);
    if (scalars.skip == kernels::kSkipNoTargets) return {};
    const double loss = scalars.loss, limit = high_loss();
    const bool lowest = std::isfinite(loss) && (state_.lowest_after < 0 || loss < state_.lowest_loss);
    if (!(loss <= limit) && !lowest && number > settings_.warmup_steps) ++state_.high_steps;
    else state_.high_steps = 0;
    if (std::isfinite(loss)) {
        state_.loss_sum += loss;
        ++state_.losses;
    }
    if (lowest) {
        state_.lowest_loss = loss;
        state_.lowest_after = number - 1;
    }
    if (const double guesses = std::log(double(settings_.vocabulary));
        settings_.starts_trained && number == 1 && settings_.vocabulary > 0 && loss > kUntrained * guesses)
        return Report::Warning{"the model is untrained",
                       "the model of --init has a loss of " + loss_text(loss) + " in step 1, as random guesses do (" +
                           loss_text(guesses) + "): it is untrained, or its tokenizer is another one than that of the "
                           "data; for an untrained model use the --lr of a new one, which auto takes for a size"};
    if (state_.high_steps < kHighSteps || std::exchange(warned_high_, true)) return {};
    return Report::Warning{"loss is high",
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
        return {false, Report::Warning{"validation is not finite",
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
    return {false, Report::Warning{"overfitting",
                           "the model overfits: the last " + std::to_string(kWorseValidations) +
                               " validations are worse than the best one (" + loss_text(state_.best_validation) +
                               " after step " + std::to_string(state_.best_validation_after) +
                               ") while the training loss falls; use the checkpoint of that step (--keep-best), or "
                               "more data, fewer steps or a smaller model" +
                               (settings_.in_order ? "; or, if the text changes in its course, --shuffle" : "") +
                               kSeeHealth}};
}

void RunHealth::count(std::int64_t number, std::int32_t skip) {
    auto& [failed, without_update] = in_a_row_;
    failed = skip == kernels::kSkipNonFinite ? failed + 1 : 0;
    if (skip == kernels::kNoSkip) without_update = 0;
    else if (skip != kernels::kSkipNoTargets) ++without_update;
    const auto fail = [&](const std::string& why) {
        if (!failure_) failure_ = std::make_exception_ptr(Error(why, Blame::runtime));
    };
    if (diverged())
        fail("the loss or gradient norm was not finite for " + counted(failed, "step") + " in a row, up to step " +
             std::to_string(number) + ": the model has diverged and is not saved; " + advice_after_divergence());
    else if (without_update >= kMostStepsWithoutUpdate && skip == kernels::kSkipOutlier)
        fail(counted(without_update, "step") +
             " in a row were skipped as outliers or not finite: the bound is too low, or the data or the model have "
             "changed; check them, then use --resume auto and change or remove --skip-loss-z and --skip-norm-z");
}

std::exception_ptr RunHealth::divergence() const {
    if (in_a_row_.failed == 0 && !state_.validation_failed) return nullptr;
    return std::make_exception_ptr(
        Error("the run ends with a model that may have diverged: the last " +
                  std::string(in_a_row_.failed > 0 ? "loss or gradient norm" : "validation loss") + " is not finite" +
                  (settings_.output_dir.empty() ? "" : "; its checkpoint has replaced no older one") + "; " +
                  advice_after_divergence(),
              Blame::runtime));
}

std::string RunHealth::advice_after_divergence() const {
    const std::int64_t good_after = std::max(state_.lowest_after, state_.best_validation_after);  // -1: unknown
    std::string folder;
    try {
        if (!settings_.output_dir.empty())
            for (const auto& [step, path] : step_folders(settings_.output_dir))
                if (step <= good_after && has_files_of_manifest(path)) folder = path.string();
    } catch (const Error&) {  // the folder cannot be read
    }
    const std::string anew = "start again with a lower --lr or more --warmup-steps";
    if (folder.empty()) return anew;
    // The checkpoint may be of a shorter run, which this one extended.
    const std::string length =
        settings_.total_steps ? " --max-steps " + std::to_string(*settings_.total_steps) : "";
    return "resume with a lower --lr from a checkpoint before the loss began to rise, such as --resume " + folder +
           length + " (with another --output-dir if newer ones exist), or " + anew;
}

}  // namespace llmc
