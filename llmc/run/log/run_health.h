// run_health.h - what losses say about a run: it diverges, it overfits, or its model is no longer finite
// (llmc/RUN_HEALTH.md)
#pragma once
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>

namespace llmc {

// A part of checkpoints, so that a resumed run compares with the same losses. Steps are numbers of completed steps.
struct HealthState {
    double lowest_loss = 0;                  // of a training step,
    std::int64_t lowest_after = -1;          // the steps completed before that one; -1: none yet
    int high_steps = 0;                      // consecutive last steps with a high loss
    double best_validation = 0;
    std::int64_t best_validation_after = -1; // -1: none yet
    int validations_since_best = 0;          // and how many followed it
    int worse_validations = 0;               // consecutive last ones that were clearly worse than the best one
    double loss_sum = 0;                     // of the training steps since the last validation
    std::int64_t losses = 0;
    double mean_at_best = 0;                 // mean training loss between the best validation and the one before
    bool has_mean_at_best = false;
    bool validation_failed = false;          // the last one was not finite
    bool operator==(const HealthState&) const = default;
};

// Sees the same losses on every rank, and so decides the same.
class RunHealth {
public:
    // vocabulary 0: losses are not compared with the entropy of random guesses. Steps of the warm-up are never high.
    // may_overfit: that is no reason for a warning.
    RunHealth(int vocabulary, std::int64_t warmup_steps, bool may_overfit = false)
        : vocabulary_(vocabulary), warmup_steps_(warmup_steps), warned_overfitting_(may_overfit) {}

    struct Warning {
        const char* kind;  // "loss is high", "overfitting", "validation is not finite"
        std::string text;
    };
    // The loss of step `number`, counted from 1; steps without targets have none. A kind of warning is returned once.
    std::optional<Warning> step(std::int64_t number, double loss);
    struct Validated {
        bool best;  // lower than all before; not the first one, though the state has it as the best
        std::optional<Warning> warning;
    };
    // After `steps` steps.
    Validated validation(std::int64_t steps, double loss);

    const HealthState& state() const { return state_; }
    void restore(const HealthState& state) { state_ = state; }
    // The number of steps after which the model was last known to be good; -1: unknown.
    std::int64_t good_after() const;

    static constexpr int kHighSteps = 50, kWorseValidations = 3;

private:
    double high_loss() const;

    int vocabulary_;
    std::int64_t warmup_steps_;
    HealthState state_{};
    bool warned_high_ = false, warned_overfitting_, warned_failed_ = false;
};

}  // namespace llmc
