// train_further.h - how a completed run is made longer, and what its learning rate then does
#pragma once
#include <string>
#include <vector>

#include "llmc/run/checkpoint/trainer_state.h"
#include "llmc/run/control/schedule.h"

namespace llmc {

// How to resume in folder `out` from `from`, with the options of that checkpoint. With several ranks, mpirun's own
// flags are not known.
std::string resume_command(const std::string& out, const std::string& from, int ranks);

// Of a run that can be made longer.
struct FurtherTraining {
    std::string output_dir{};
    double max_minutes = 0;  // its length; 0: a number of steps
    Schedule schedule{};
};
// For a run that has ended after `made` steps: "to train further: COMMAND", with twice the length. A rise of the
// learning rate is said, and with wsd the command for a branch from before the cool-down comes first.
std::vector<std::string> ways_to_train_further(const FurtherTraining& run, const StepPlan& steps, std::int64_t made,
                                               const RunSeconds& seconds, const TaskStates& tasks);

}  // namespace llmc
