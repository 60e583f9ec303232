// trainer_state.h - what a checkpoint holds beside weights and moments: how far training is, and the run that it is of
//
//   OUT/step_00000100/trainer_state.json
#pragma once
#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

#include "llmc/comm/agreement.h"
#include "llmc/data/data_loader.h"
#include "llmc/model/optimizer.h"
#include "llmc/run/noise_scale.h"

namespace llmc {

// What a run was started with, and which run may go on with it.
struct RunIdentity {
    std::int64_t step_tokens = 0;     // positions of a step
    int ranks = 1;
    nlohmann::json options{};         // by long name
    std::vector<Fact> training_data{};                 // facts_of_shards()
    std::vector<Fact> validation_data{}, hellaswag{};  // the same, and facts_of_hellaswag(); empty: none, or unknown
};

// How far training is, between two steps.
struct TrainerState {
    std::int64_t step = 0;              // steps made, those included whose update was skipped
    Optimizer::Counts optimizer{};
    int failed_in_a_row = 0;            // steps, the last ones, whose loss or norm was not finite
    int without_update = 0;             // as well, or that were outliers (StepLog::InARow)
    // unless a signal came between what is due after this step
    bool validated = true, scored = true, sampled = true;
    LoaderPosition data{};              // the next row
    std::vector<NoiseAverages> noise;   // RunNoise::averages(); empty: not measured
    int moment_files = 1, onebit_files = 0;
    RunIdentity run;
};

// Throws a run-time Error where the system refuses.
void write_trainer_state(const std::filesystem::path& folder, const TrainerState& state);
// Throws Error that names the file where it is missing, no such JSON, or of another version of the format.
TrainerState read_trainer_state(const std::filesystem::path& folder);

}  // namespace llmc
