// startup_notes.h - what a user should know before the first step
#pragma once
#include <string>
#include <vector>

#include "llmc/run/start/run_data.h"
#include "llmc/run/start/run_plan.h"

namespace llmc {

// Printed by rank 0, in this order. Finds, for example, that a disk has no room for the checkpoints.
std::vector<std::string> startup_notes(const RunPlan& plan, const RunData& data, const StartingPoint& start,
                                       Context& context);

}  // namespace llmc
