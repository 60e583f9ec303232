// trainer_state.h - the part of a checkpoint that is not weights or optimizer state: training progress and the identity
// of the run
//
//   OUT/step_00000100/trainer_state.json
#pragma once
#include <filesystem>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "llmc/base/fingerprint.h"
#include "llmc/base/json_text.h"
#include "llmc/comm/agreement.h"
#include "llmc/data/data_loader.h"
#include "llmc/model/optimizer.h"
#include "llmc/run/log/noise_scale.h"

namespace llmc {

inline constexpr const char* kStateName = "trainer_state.json";

// How a run was started, which decides whether another run may resume it.
struct RunIdentity {
    int ranks = 1;
    JsonValue options{};                               // by long flag name
    std::vector<Fact> training_data{};                 // shard_facts()
    std::vector<Fact> validation_data{}, hellaswag{};  // and hellaswag_facts(); empty: none, or unknown
    std::int64_t data_after = 0;                       // steps made before the first one on this training data
};

// A fact in trainer_state.json.
void to_json(nlohmann::json& json, const Fact& fact);
void from_json(const nlohmann::json& json, Fact& fact);

// What losses say about a run, so that a resumed one compares with the same (control/run_health.h). Steps are numbers
// of completed steps.
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

// Times of a run, for one whose length is a time (--max-minutes).
struct RunSeconds {
    double used = 0;             // of the whole run, also before a resume
    double before_training = 0;  // of these, those before the first step
};

// A task between steps (loop/tasks.h).
struct TaskState {
    bool pending = false;  // due, but a signal or the time limit ended the run first
    double seconds = 0;    // that it took last, if a run whose length is a time leaves time for it at its end; 0: none
    bool operator==(const TaskState&) const = default;
};
using TaskStates = std::map<std::string, TaskState>;  // by name
inline constexpr const char *kValidationTask = "validation", *kHellaSwagTask = "hellaswag", *kSamplesTask = "samples",
                            *kCheckpointTask = "checkpoint";

// Training progress between two steps.
struct TrainerState {
    std::int64_t step = 0;              // steps made, including those whose update was skipped
    OptimizerCounts optimizer{};
    std::vector<OptimizerCounts> workers{};  // of every rank in local steps; otherwise empty
    int failed_in_a_row = 0;            // consecutive last steps with a loss or norm that was not finite
    int without_update = 0;             // the same, or outliers
    LoaderPosition data{};              // the next row
    std::vector<BatchChange> batches;   // StepPlan::changes(): of all steps, also of those to come
    std::vector<NoiseAverages> noise;   // one, or none: not measured
    HealthState health{};
    RunSeconds seconds{};
    TaskStates tasks{};
    std::map<std::string, int> state_files{};  // number of files of each name of the optimizer's state
    RunIdentity run;

    std::int64_t last_step_tokens() const;  // of the first step, if none has been made
    // The model may have diverged: the loss or norm of the last step or the last validation was not finite.
    bool may_have_diverged() const { return failed_in_a_row > 0 || health.validation_failed; }
};

// As in the file, for other ranks.
std::string counts_text(const OptimizerCounts& counts);
OptimizerCounts counts_in(const std::string& text);

// Throws a run-time Error if the file cannot be written.
FileFingerprint write_trainer_state(const std::filesystem::path& folder, const TrainerState& state);
// Throws Error that names the file if it is missing, invalid, or of another format version.
TrainerState read_trainer_state(const std::filesystem::path& folder);

}  // namespace llmc
