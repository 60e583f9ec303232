// resolve_auto.cpp - what flags leave to the run (auto), decided once
#include <algorithm>
#include <limits>

#include "llmc/comm/agreement.h"
#include "llmc/model/outer_steps.h"
#include "llmc/run/checkpoint/checkpoint_writer.h"
#include "llmc/run/start/run_plan.h"

namespace llmc {
namespace {

// How much each step trains on; plan_steps() adds their number.
StepPlan steps_of(const RunPlan& plan, std::int64_t micro_batch, const Resumption* from) {
    const BatchSettings& batch = plan.settings.batch;
    const int ranks = plan.identity.ranks, rank = plan.world ? plan.world->rank : plan.setup.sharding.rank;
    const BatchShape shape{.micro_batch = int(micro_batch), .seq_len = int(batch.seq_len), .rank = rank,
                           .world = ranks};
    const BatchSchedule sizes = sizes_of_steps(batch, ranks);
    const char* const size = batch.schedule.empty() ? "--total-batch-tokens" : "a size of --batch-schedule";
    return from ? StepPlan(shape, sizes, from->state.batches, from->state.step, size)
                : StepPlan(shape, sizes, {}, 0, size);
}

// Larger micro-batches are hardly faster.
std::int64_t tokens_at_once() { return device::is_gpu() ? 65536 : 4096; }

// --micro-batch auto: the largest that divides a step's sequences per rank, fits the memory plan of every rank and has
// at most tokens_at_once(); 1 if none does. `plan`: for a micro-batch of 1. Collective.
std::int64_t largest_micro_batch(const RunPlan& plan, const Resumption* from, const Context& context) {
    Communicator& ranks = *context.world;
    const StepPlan steps = together(ranks, [&] { return steps_of(plan, 1, from); });
    const std::int64_t sequences = steps.micro_batches(steps.common()), most_rows = std::numeric_limits<int>::max();
    ModelSetup setup = plan.setup;
    const std::int64_t most = std::max<std::int64_t>(tokens_at_once() / setup.shape.seq_len, 1);
    setup.shape.batch = int(std::min({sequences, most, most_rows / setup.shape.seq_len}));
    const std::int64_t fits = memory_of(plan, setup, context).largest_micro_batch;
    std::int64_t batch = -ranks.host_reduce(-fits, HostReduction::max);
    while (batch > 1 && sequences % batch != 0) --batch;
    return std::max<std::int64_t>(batch, 1);
}

}  // namespace

void resolve_auto(RunPlan& plan, const Resumption* resumption, const Context& context) {
    Communicator& ranks = *context.world;
    RunSettings& s = plan.settings;
    together(ranks, [&] {
        if (s.batch.seq_len == 0) s.batch.seq_len = std::min(plan.setup.config.max_seq_len, 1024);
        plan.setup.shape = {1, int(s.batch.seq_len)};
        if (plan.world)
            resolve_auto(plan.optimizer.outer, plan.world->ranks / plan.setup.sharding.ranks, s.batch.seq_len);
        GenerationSettings generation = s.samples.generation;
        generation.seed = std::uint64_t(s.seed);
        generation.window = int(s.batch.seq_len);
        const std::string& prompt = s.samples.prompt;
        if (s.samples.every > 0) plan.sampler.emplace(ranks.rank() == 0 ? prompt : "", generation, plan.tokenizer);
    });
    if (s.batch.micro_batch == 0) s.batch.micro_batch = largest_micro_batch(plan, resumption, context);
    together(ranks, [&] {
        plan.steps = steps_of(plan, s.batch.micro_batch, resumption);
        plan.setup.shape.batch = int(s.batch.micro_batch);
        if (!s.eval_only)
            plan.noise = choose_noise_estimator(s.noise.estimator, plan.setup.sharding.stage, plan.setup.sharding.ranks,
                                                int(plan.steps.micro_batches(plan.steps.largest())));
    });
}

MemoryPlan memory_of(const RunPlan& plan, const ModelSetup& setup, const Context& context) {
    const bool copies =
        device::memory_is_host_memory() && setup.training && !plan.settings.checkpoints.output_dir.empty();
    const bool samples = plan.sampler && setup.sharding.rank == 0;
    return plan_memory(
        {.setup = setup, .optimizer = plan.optimizer, .reduce_in_bf16 = plan.reduces_in_bf16(),
         .checkpoint_copies = copies ? CheckpointWriter::copy_bytes(plan.table, setup.sharding, plan.optimizer) : 0,
         .samples = samples ? plan.sampler->bytes(setup.config, setup.dtype) : 0}, plan.table, context);
}

}  // namespace llmc
