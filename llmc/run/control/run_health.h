// run_health.h - what losses say about a run: it diverges, it overfits, or its model is no longer finite
// (llmc/RUN_HEALTH.md)
#pragma once
#include <exception>
#include <optional>
#include <string>

#include "kernels/grad_norm.h"
#include "llmc/run/checkpoint/trainer_state.h"
#include "llmc/run/log/report.h"

namespace llmc {

// Sees the same losses on every rank, and so decides the same; or after agree(), if ranks make local steps.
class RunHealth {
public:
    struct Settings {
        int vocabulary = 0;             // 0: losses are not compared with the entropy of random guesses
        std::int64_t warmup_steps = 0;  // their losses are never high
        bool may_overfit = false;       // that is no reason for a warning
        bool in_order = false;          // the text is not shuffled, and may change in its course
        bool starts_trained = false;    // step 1 has the weights of another run or program
        std::string output_dir{};       // whose checkpoints are suggested; "": none
        std::optional<std::int64_t> total_steps{};
    };
    explicit RunHealth(const Settings& settings) : settings_(settings) {}
    // Of a resumed run. The failed steps in a row count from 0 unless `counts_failed`.
    void restore(const TrainerState& state, bool counts_failed);

    // For local steps: the most failed steps in a row of all ranks. Returns whether one of them has a
    // failure(). Collective.
    bool agree(Communicator& ranks);
    // The last outer steps in a row were skipped: from kMostSkippedRounds on the run has diverged.
    void rounds_skipped(std::int64_t made, int in_a_row);

    using Warning = std::optional<Report::Warning>;  // a kind is returned once
    // The results of step `number`, counted from 1.
    Warning step(std::int64_t number, const kernels::StepScalars& scalars);
    struct Validated {
        bool best;  // lower than all before; not the first one, though the state has it as the best
        Warning warning;
    };
    // After `steps` steps.
    Validated validation(std::int64_t steps, double loss);

    // Of the last steps, in a row: how many failed (a loss or norm that is not finite), and how many made no update
    // (failed or outliers). Steps without targets do not count.
    struct InARow {
        int failed = 0, without_update = 0;
    };
    const InARow& in_a_row() const { return in_a_row_; }
    const HealthState& state() const { return state_; }
    // The run-time Error after kMostFailedSteps failed steps in a row, kMostStepsWithoutUpdate without an update, or
    // kMostSkippedRounds outer steps; of this rank, before agree().
    const std::exception_ptr& failure() const { return failure_; }
    // After kMostFailedSteps: the model is not saved, even if its weights are finite.
    bool diverged() const { return in_a_row_.failed >= kMostFailedSteps; }
    // The Error of a run that ends here with a model that may have diverged, or null.
    std::exception_ptr divergence() const;
    // How to continue after a divergence: from the newest checkpoint of a model that was known to be good, or anew.
    std::string advice_after_divergence() const;

    static constexpr int kHighSteps = 50, kWorseValidations = 3, kMostFailedSteps = 10,
                         kMostSkippedRounds = 3;
    // The size of the outlier window: after that many skipped steps it no longer describes the data or the model. Ten
    // would end a run at a range of bad data, after which, unlike after a divergence, losses are normal again.
    static constexpr int kMostStepsWithoutUpdate = kernels::OutlierWindow::kSize;

private:
    void count(std::int64_t number, std::int32_t skip);
    double high_loss() const;

    const Settings settings_;
    HealthState state_{};
    InARow in_a_row_{};
    std::exception_ptr failure_;
    bool warned_high_ = false, warned_overfitting_ = settings_.may_overfit, warned_failed_ = false;
};

}  // namespace llmc
