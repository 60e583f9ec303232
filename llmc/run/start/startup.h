// planned_run.h - a run before its first step: what is found, planned and told before there is a model, the model, and
// the log that begins then; before, nothing is written to --output-dir
#pragma once
#include <memory>
#include <vector>

#include "llmc/run/plan.h"
#include "llmc/run/report.h"
#include "llmc/run/run_facts.h"
#include "llmc/run/tuning.h"

namespace llmc {

// All of it is the same on every rank but for what rank 0 alone tells.
struct PlannedRun {
    Tuning tuning;
    Found found;
    Plan plan;
    Changes changes;             // since the checkpoint
    std::vector<RunFact> facts;  // told so far
    bool appends = false;        // to the log that is there

    const Resumption* resumption() const { return found.resumption ? &*found.resumption : nullptr; }
};

// Finds the checkpoint to go on from, plans steps and memory, has attention chosen by time, and tells the plan on the
// terminal; with --dry-run the choices, too, as nothing follows. Every rank calls it, and what one of them refuses of
// options, data, checkpoint or memory is a SharedError on all. Writes nothing. The context must outlive the result.
PlannedRun plan_run(const Options& options, Context& context);

// The model with its first weights (initial_model.h), its products chosen by time; choices are kept in their file.
// Every rank calls it. Refers to the plan, which stays where it is, and to the context.
std::unique_ptr<Model> make_initial_model(PlannedRun& run, const Options& options, Context& context);

// Tells the choices, and what compression costs, then opens the log and writes how the run starts, or goes on; makes
// way for its checkpoints. Every rank calls it; throws SharedError where the folder cannot be written.
Report begin_report(PlannedRun& run, const Options& options, Context& context);

}  // namespace llmc
