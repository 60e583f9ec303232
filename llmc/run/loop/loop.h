// loop.h - what the parts of a run share from its start to its end
#pragma once
#include <memory>
#include <optional>

#include "llmc/model/batch_upload.h"
#include "llmc/run/control/interrupt.h"
#include "llmc/run/control/run_health.h"
#include "llmc/run/start/startup.h"

namespace llmc {

// Every rank has one. It outlives the parts that refer to it.
struct Loop {
    Startup startup;
    Context& context;
    Interrupt& interrupt;
    const RunPlan& plan = startup.plan;
    RunBatches& batches = startup.data.batches;
    const std::unique_ptr<Model> model = make_initial_model(startup, context);
    BatchUpload upload{plan.setup, context};
    RunHealth health{{.vocabulary = plan.setup.config.vocabulary, .warmup_steps = plan.warmup_steps(),
                      .may_overfit = plan.settings.data.overfit_batch, .in_order = !plan.settings.data.shuffle,
                      .starts_trained = !startup.start.path.empty() && !startup.resumption(),
                      .output_dir = plan.settings.checkpoints.output_dir, .total_steps = plan.steps.total}};
    std::optional<Report> report{};  // from open_report() on, before which nothing is written

    bool first_rank() const { return context.world->rank() == 0; }  // prints, samples and writes the log
    // Of the checkpoint that is resumed; null: none.
    const TrainerState* resumed() const { return startup.resumption() ? &startup.resumption()->state : nullptr; }
};

}  // namespace llmc
