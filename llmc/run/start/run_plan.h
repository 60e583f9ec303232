// run_plan.h - the values of a run that follow from its options and data: model, batch, steps, optimizer, schedule.
// Computed once, before anything large is allocated or anything is written, and constant from then on
#pragma once
#include <memory>
#include <optional>
#include <span>

#include "llmc/model/memory_plan.h"
#include "llmc/model/optimizer.h"
#include "llmc/run/control/schedule.h"
#include "llmc/run/evaluation/text_sampler.h"
#include "llmc/run/log/noise_scale.h"
#include "llmc/run/options/run_settings.h"
#include "llmc/run/start/resume.h"
#include "llmc/run/start/run_data.h"
#include "llmc/text/tokenizer_files.h"

namespace llmc {

// How documents lie in rows: what attention within them computes.
struct PackedDocuments {
    std::int64_t tokens = 0, rows = 0;  // that were counted
    std::int64_t ends_of_text = 0;
    std::int64_t parts = 0, longest = 0;    // documents, or parts of them, within rows; tokens of the longest
    std::int64_t pairs = 0, all_pairs = 0;  // of a query and a key: within documents; within rows

    double pair_share() const { return double(pairs) / double(all_pairs); }
};

struct RunPlan {
    RunSettings settings;  // of the command line, --config and the checkpoint that is resumed; length and size of a
                           // micro-batch without auto
    std::shared_ptr<const Tokenizer> tokenizer{};  // of the data; only rank 0 always loads its table
    std::string tokenizer_note{};                  // why it has no table; empty: it has one, or no task needs it
    TokenizerFiles tokenizer_files{};              // for checkpoints, with end_of_text, also of config.json; -1: none
    int end_of_text = -1;
    ParameterTable table;
    ModelSetup setup{};                             // of this rank; with outer steps within its worker
    std::optional<Sharding> world{};                // with outer steps, among all ranks
    StepPlan steps{};
    std::int64_t first_step = 0;                    // steps made before, by the run that is resumed
    RunSeconds seconds_before{};                    // and the time that it used,
    TaskStates tasks_before{};                      // for tasks, too
    OptimizerCounts counts_before{};
    int ranks_here = 1;                             // on this machine
    RunIdentity identity{};
    std::optional<TextSampler> sampler{};
    NoiseChoice noise{SmallBatches::none, ""};
    OptimizerSettings optimizer{};
    Schedule schedule{};
    std::optional<double> peak_flops{};  // of all ranks' devices together; empty: not known
    std::optional<PackedDocuments> documents{};  // with --document-mask: of the first shard that is read

    double pair_share() const { return documents ? documents->pair_share() : 1; }  // that attention computes
    bool is_complete() const { return steps.ends_after(first_step); }
    // Of all steps on this training data, if their number is known.
    std::int64_t positions_on_data() const { return steps.positions_left(identity.data_after); }
    std::int64_t warmup_steps() const { return settings.schedule.warmup_of(steps); }
    bool reduces_in_bf16() const { return settings.exchange.dtype == kernels::DType::bf16; }
    bool measures_noise() const { return noise.small_batches != SmallBatches::none; }
    GradientExchange::Settings exchange() const {
        return {.sharding = setup.sharding,
                .world = setup.sharding.shards_gradients() ? std::nullopt : world, .small_batches = noise.small_batches,
                .reduce_in_bf16 = reduces_in_bf16(), .may_stay_local = optimizer.kind->local_gradients};
    }
    OptimizerRun optimizer_run() const {
        return {.settings = optimizer, .table = table, .sharding = setup.sharding, .before = counts_before,
                .step_tokens = steps.smallest_of_worker(), .total_steps = steps.total,
                .ranks_here = ranks_here, .reduce_in_bf16 = reduces_in_bf16(), .dtype = setup.dtype};
    }
};

// A plan is made in three parts, because the micro-batch depends on the memory of the model, and the number of steps on
// the batches. All throw Error for options that do not match each other, the data or the device. Whether the memory
// plan fits is checked later (require_room): algorithms are chosen before, and the plan is printed first.

// All that does not depend on auto. `resumption`: the checkpoint to resume from, or null. `nodes`: nodes_of() all
// ranks.
RunPlan plan_model(const RunSettings& given, const RunFiles& files, const StartingPoint& start,
                   const Resumption* resumption, std::span<const int> nodes, const Context& context);
// What flags leave to the run: length of sequences, micro-batch, outer steps, noise scale; and what depends on these
// alone. Collective; throws SharedError.
void resolve_auto(RunPlan& plan, const Resumption* resumption, const Context& context);
// The rest. `loader`: null if there is no training, or for a plan without the number of steps.
void plan_steps(RunPlan& plan, const RunFiles& files, const DataLoader* loader, const Resumption* resumption,
                std::span<const int> nodes);

// Of a rank with this setup.
MemoryPlan memory_of(const RunPlan& plan, const ModelSetup& setup, const Context& context);

// What differs from the run that is resumed, the learning rate included. Throws Error if the difference is not allowed
// (changes_since()).
Changes check_resumption(const RunPlan& plan, const RunBatches& batches, const Resumption& resumption);

}  // namespace llmc
