// memory_plan.cpp - counts the bytes of every array of a run, and finds the largest micro-batch that fits
#include "llmc/model/memory_plan.h"

#include "kernels/tuning/timing.h"
#include "llmc/base/number_text.h"
#include "llmc/model/batch_upload.h"
#include "llmc/model/outer_steps.h"

namespace llmc {

namespace {

std::size_t total_of(const std::vector<MemoryPlan::Line>& lines) {
    std::size_t sum = 0;
    for (const MemoryPlan::Line& line : lines) sum = saturating_sum(sum, line.bytes);
    return sum;
}

std::vector<MemoryPlan::Line> count_bytes(const MemoryUses& uses, const ParameterTable& table, const Context& context) {
    const ModelSetup& setup = uses.setup;
    const ModelBytes model = model_bytes(setup, table, context.device);
    std::vector<MemoryPlan::Line> lines{
        {"parameters, bf16", model.parameters},
        {setup.dtype == kernels::DType::bf16 ? "master weights, fp32" : "parameters, fp32", model.master_weights},
        {uses.reduce_in_bf16 ? "gradients, fp32 and bf16" : "gradients, fp32",
         setup.training ? gradient_bytes(table, {.sharding = setup.sharding, .reduce_in_bf16 = uses.reduce_in_bf16})
                        : 0}};
    if (setup.training)
        for (const OptimizerBytes& array :
             uses.optimizer.kind->bytes(uses.optimizer, table, setup.sharding, setup.dtype))
            lines.push_back({array.what, array.bytes});
    for (const OptimizerBytes& array : outer_bytes(uses.optimizer.outer, table, setup.sharding))
        lines.push_back({array.what, array.bytes});
    lines.insert(lines.end(),
                 {{"master weights gathered to save", setup.training ? model.gathered : 0},
                  {"copies for a checkpoint", uses.checkpoint_copies},
                  {"activations and logits", model.activations},
                  {"samples: cache, activations", uses.samples},
                  {"tokens and targets", BatchUpload::device_bytes(setup)},
                  {"alignment of NCCL's arrays", 2 * context.worker->allocation_rounding()},  // parameters, gradients
                  {"matrix library", context.matmul.workspace_bytes()},
                  {"attention library", attention_plan(setup, context).workspace_bytes},
                  {"libraries, on first use", context.device.library_bytes},
                  {"stacks of threads", context.device.stack_bytes}});
    // While weights are loaded, only the model exists, and only its weights are resident. Counts if this is more than
    // the memory needed later.
    const std::size_t at_load = saturating_sum(saturating_sum(model.load, model.parameters),
                                               saturating_sum(model.master_weights, context.device.library_bytes));
    const std::size_t later = total_of(lines);
    lines.push_back({"extra at weight loading", model.load && at_load > later ? at_load - later : 0});
    // Products are timed when the model and its libraries exist, but neither gradients nor an optimizer. Attention was
    // timed before, on tensors that take less than the activations. Counted with --tune=off, too.
    const kernels::TunedAlgorithms* const tuned = context.tuned.get();
    const bool times = kernels::Matmul::chooses_by_shape() && tuned && tuned->cache_bytes > 0;
    std::size_t at_timing = 0;
    if (times)
        for (const std::size_t bytes :
             {model.parameters, model.master_weights, model.activations, context.matmul.workspace_bytes(),
              attention_plan(setup, context).workspace_bytes, context.device.library_bytes,
              BatchUpload::device_bytes(setup), model.chooses, kernels::timing_bytes(tuned->cache_bytes)})
            at_timing = saturating_sum(at_timing, bytes);
    const std::size_t other = total_of(lines);
    lines.push_back({"extra at autotuning", at_timing > other ? at_timing - other : 0});
    return lines;
}

std::string savings_of(const MemoryUses& uses) {
    const ModelSetup& setup = uses.setup;
    std::string flags;
    if (setup.training && setup.recompute != Recompute::block) flags += "--recompute block, ";
    if (setup.dtype != kernels::DType::bf16) flags += "--dtype bf16, ";
    const bool may_shard = setup.sharding.stage == 0 || (setup.sharding.stage == 1 && uses.optimizer.outer.every == 0);
    if (setup.training && setup.sharding.ranks > 1 && may_shard && !uses.optimizer.kind->local_gradients)
        flags += "-z " + std::to_string(setup.sharding.stage + 1) + ", ";
    return flags;
}

}  // namespace

std::size_t MemoryPlan::total() const { return total_of(lines); }

std::string MemoryPlan::text() const {
    std::string text = "memory plan\n";
    const auto add = [&](const std::string& what, const std::string& size) {
        text += format("  %-28s %14s\n", what.c_str(), size.c_str());
    };
    for (const Line& line : lines)
        if (line.bytes > 0) add(line.what, mebibytes(line.bytes));
    add("total", mebibytes(total()));
    add("available", available > 0 ? mebibytes(available) : "n/a");
    return text;
}

std::string MemoryPlan::summary() const {
    return "memory: " + mebibytes(total()) + " planned, " + (available > 0 ? mebibytes(available) : "n/a") +
           " available\n";
}

MemoryPlan plan_memory(const MemoryUses& uses, const ParameterTable& table, const Context& context) {
    const int requested = uses.setup.shape.batch;
    const auto plan_for = [&](int micro_batch) {
        MemoryUses other = uses;
        other.setup.shape.batch = micro_batch;
        return MemoryPlan{.lines = count_bytes(other, table, context), .available = context.device.memory_free,
                          .ranks = uses.setup.sharding.ranks, .micro_batch = micro_batch,
                          .largest_micro_batch = micro_batch, .savings = savings_of(uses)};
    };
    MemoryPlan plan = plan_for(requested);
    if (plan.fits()) return plan;
    plan.largest_micro_batch = 0;  // binary search, as the plan grows with the batch
    for (int low = 0, high = requested; high - low > 1;) {
        const int middle = low + (high - low) / 2;
        if (plan_for(middle).fits()) plan.largest_micro_batch = low = middle;
        else high = middle;
    }
    return plan;
}

void require_room(const MemoryPlan& plan, std::int64_t sequences, const std::string& step_flags) {
    if (plan.fits()) return;
    int most = plan.largest_micro_batch;
    while (most > 1 && sequences % most != 0) --most;
    fail("--micro-batch", plan.micro_batch,
         "a batch whose memory plan, here " + mebibytes(plan.total()) + ", fits the available " +
             mebibytes(plan.available) + (plan.ranks > 1 ? ", this rank's share" : ""),
         most > 0
             ? "the largest that fits" + std::string(sequences > 0 ? " and divides a step" : "") + " is " +
                   std::to_string(most) + ": set -b " + std::to_string(most) + step_flags +
                   (step_flags.empty() ? "" : " for the same update") + ", or --ignore-memory-plan"
             : "not even one sequence fits: try " + plan.savings + "a shorter --seq-len or a smaller model, or set "
               "--ignore-memory-plan");
}

}  // namespace llmc
