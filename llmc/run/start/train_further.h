// train_further.h - how a completed run is made longer, and what its learning rate then does
#pragma once
#include <string>
#include <vector>

#include "llmc/run/start/run_plan.h"

namespace llmc {

// How to resume in folder `out` from `from`, with the options of that checkpoint. With several ranks, mpirun's own
// flags are not known.
std::string resume_command(const std::string& out, const std::string& from, int ranks);

// For a run that has ended after `made` steps: "to train further: COMMAND", with twice the length. A rise of the
// learning rate is said, and with wsd the command for a branch from before the cool-down comes first.
std::vector<std::string> ways_to_train_further(const RunPlan& plan, std::int64_t made, const RunSeconds& seconds,
                                               const TaskStates& tasks);

}  // namespace llmc
