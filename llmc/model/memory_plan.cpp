#include "llmc/model/memory_plan.h"

#include <cstdio>

#include "llmc/model/batch_upload.h"
#include "llmc/model/optimizer.h"

namespace llmc {
namespace {

std::string mebibytes(std::size_t bytes) {
    char text[32];
    std::snprintf(text, sizeof text, "%.1f MiB", double(bytes) / double(1 << 20));
    return text;
}

}  // namespace

std::size_t MemoryPlan::total() const {
    std::size_t sum = 0;
    for (const Line& line : lines) sum = saturating_sum(sum, line.bytes);
    return sum;
}

std::string MemoryPlan::text() const {
    std::string text = "memory plan\n";
    char row[128];
    const auto add = [&](const std::string& what, std::size_t bytes) {
        std::snprintf(row, sizeof row, "  %-28s %14s\n", what.c_str(), mebibytes(bytes).c_str());
        text += row;
    };
    for (const Line& line : lines)
        if (line.bytes > 0) add(line.what, line.bytes);
    add("total", total());
    if (available > 0) add("available", available);
    else text += "  available                               n/a\n";
    return text;
}

MemoryPlan plan_memory(const ModelSetup& setup, const Context& context, bool reduce_in_bf16) {
    const ModelBytes model = model_bytes(setup);
    const ParameterTable table(setup.config);
    MemoryPlan plan;
    plan.lines = {{"parameters, bf16", model.parameters},
                  {setup.dtype == kernels::DType::bf16 ? "master weights, fp32" : "parameters, fp32",
                   model.master_weights},
                  {reduce_in_bf16 ? "gradients, fp32 and bf16" : "gradients, fp32",
                   setup.training ? gradient_bytes(table, {.sharding = setup.sharding,
                                                           .reduce_in_bf16 = reduce_in_bf16}) : 0},
                  {"Adam's moments, fp32", setup.training ? optimizer_bytes(table, setup.sharding) : 0},
                  {"master weights gathered to save", setup.training ? model.gathered : 0},
                  {"activations and logits", model.activations},
                  {"tokens and targets", BatchUpload::device_bytes(setup.shape)},
                  {"matrix library", context.matmul.workspace_bytes()},
                  {"attention library", context.attention.plan(attention_problem(setup)).workspace_bytes}};
    plan.available = context.device.memory_free;
    return plan;
}

void require_room(const ModelSetup& setup, const Context& context, bool reduce_in_bf16) {
    const MemoryPlan plan = plan_memory(setup, context, reduce_in_bf16);
    if (plan.available == 0 || plan.total() <= plan.available) return;
    const auto fits_with = [&](int batch) {
        ModelSetup other = setup;
        other.shape.batch = batch;
        return plan_memory(other, context, reduce_in_bf16).total() <= plan.available;
    };
    int fits = 0;  // the plan grows with the batch: halve the gap
    for (int low = 0, high = setup.shape.batch; high - low > 1;) {
        const int middle = low + (high - low) / 2;
        if (fits_with(middle)) fits = low = middle;
        else high = middle;
    }
    const char* share = context.communicator->size() > 1 ? ", this rank's share" : "";
    fail("--micro-batch", setup.shape.batch,
         "a batch whose memory plan, here " + mebibytes(plan.total()) + ", fits the available " +
             mebibytes(plan.available) + share,
         fits > 0
             ? "the largest that fits is " + std::to_string(fits) + "; keep --total-batch-tokens for the same update"
             : "not even one sequence fits: try --recompute block, --dtype bf16, a shorter --seq-len or a smaller "
               "model");
}

}  // namespace llmc
