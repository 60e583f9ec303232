// run_facts.h - what a run tells of itself before its first step. One list makes the lines on the terminal, which are
// all that --dry-run prints, and the log's start event
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "llmc/run/plan.h"
#include "llmc/run/tuning.h"

namespace llmc {

// Either may be empty.
struct RunFact {
    std::string lines;              // for the terminal, each with its end
    nlohmann::ordered_json fields;  // for the log: an object
};
// In the order of the terminal.
std::vector<RunFact> facts_of_run(const Plan& plan, const Options& options, Context& context);
// Known when the model is there: how many choices were timed, and what they decide that is not in the last bits alone.
RunFact fact_of_choices(const Tuning& tuning, const Plan& plan, const Context& context);

std::string terminal_text(const std::vector<RunFact>& facts);
nlohmann::ordered_json start_event(const std::vector<RunFact>& facts);

}  // namespace llmc
