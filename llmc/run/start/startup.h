// startup.h - a run before its first step: it parses the command line, opens the device, plans, prints the plan,
// initializes the model and opens the log. Nothing is written to --output-dir before the log
#pragma once
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "llmc/model/tuning.h"
#include "llmc/run/log/report.h"
#include "llmc/run/start/run_data.h"
#include "llmc/run/start/run_plan.h"
#include "llmc/run/start/startup_report.h"

namespace llmc {

// The build, from its version_json(); unknown values are "unknown".
std::vector<Fact> build_facts(const nlohmann::ordered_json& version);
// The build and the flags, except those that may differ between hosts (paths of data, threads, GPU).
std::vector<Fact> command_line_facts(const CommandLine& line);
// Parses the command line. Every rank calls it. Throws SharedError if a rank cannot parse it, or if build or flags
// differ from rank 0's.
CommandLine parse_on_all_ranks(int argc, char** argv, Communicator& ranks);

// Places this rank (comm/placement.h) and opens the device and libraries that the options select. Every rank calls it;
// if one rank fails, all throw a SharedError. `communicator`, which the context shares, uses NCCL from here on if that
// backend is selected.
Context open_context(const RunSettings& options, std::shared_ptr<Communicator>& communicator);

// On rank 0 the log that --output-dir has, which no other run can write to from here on; null: none, or a dry run.
// Every rank calls it, before it searches for a checkpoint: until it has the log, another run may save and delete some.
// Throws SharedError if another run writes there, or if the folder is a symbolic link to nothing.
std::unique_ptr<LineFile> lock_log(const RunSettings& options, Communicator& ranks);

// The same on every rank, except for what only rank 0 prints.
struct Startup {
    const RunPlan plan;              // what this run is
    const ResumeSearch search;       // what it resumes from, and
    const Changes changes;           // what has changed since
    const bool appends;              // to the existing log
    RunData data;
    StartingPoint start;
    Tuning tuning;
    std::vector<StartupItem> items;  // printed so far
    std::unique_ptr<LineFile> log{};  // of lock_log()

    const Resumption* resumption() const { return search.resumption ? &*search.resumption : nullptr; }
};

// Plans steps and memory, autotunes attention and prints the plan; with --dry-run also the autotuned algorithms, as
// nothing follows. Every rank calls it; if one rank refuses options, data, checkpoint or memory, all throw a
// SharedError. Writes nothing. The context must outlive the result.
Startup prepare_run(const RunSettings& options, ResumeSearch search, Context& context);

// The model with its initial weights and its matrix products autotuned; saves the tuning file, and prints the autotuned
// algorithms and the cost of compression. Every rank calls it. The model refers to startup.plan and to the context.
std::unique_ptr<Model> make_initial_model(Startup& startup, Context& context);

// Opens the log, writes options.json and the start or resume event, and clears the checkpoint folder for this run.
// Every rank calls it. Throws SharedError if the folder cannot be written.
Report open_report(Startup& startup, Context& context);

}  // namespace llmc
