// plan.h - everything that follows from the options and the data, decided before anything large is allocated and
// anything is written: the data, the model, how much memory it takes, the steps and their batches
#pragma once
#include <memory>
#include <optional>

#include "llmc/data/data_loader.h"
#include "llmc/data/hellaswag_batches.h"
#include "llmc/data/shard_set.h"
#include "llmc/data/validation_batches.h"
#include "llmc/model/memory_plan.h"
#include "llmc/model/optimizer.h"
#include "llmc/run/evaluation.h"
#include "llmc/run/options.h"
#include "llmc/run/resume.h"
#include "llmc/run/run_control.h"
#include "llmc/run/run_noise.h"
#include "llmc/run/schedule.h"
#include "llmc/run/starting_point.h"

namespace llmc {

// The shards of --train-data and --val-data. Either may be missing, not both. Batches refer to them, so they stay where
// they are.
struct Data {
    std::unique_ptr<const ShardSet> train, val;
    std::vector<Fact> train_facts, val_facts;  // facts_of_shards()
    Vocabulary vocabulary() const { return train ? train->vocabulary() : val->vocabulary(); }
};

struct Plan {
    Data data;
    StartingPoint start;
    std::shared_ptr<const Tokenizer> tokenizer{};  // of the data; on other ranks than 0 perhaps without its table
    std::string tokenizer_note{};                  // why it has none; empty: it has one, or nothing asks for it
    ParameterTable table;
    ModelSetup setup{};
    MemoryPlan memory{};  // by plan_memory(), once it is known which libraries compute what
    std::int64_t step_tokens = 0, total_steps = 0;  // positions of one update over all ranks; updates
    std::int64_t first_step = 0;                    // steps made by the run that this one goes on with
    std::int64_t frozen_after = 0;                  // ... whose 1-bit Adam froze after so many updates; 0: not yet
    RunIdentity run{};
    int micro_batches = 0;                          // of this rank in one update
    std::unique_ptr<DataLoader> loader{};           // none with --eval-only
    std::optional<ValidationBatches> validation{};
    std::optional<HellaSwagBatches> hellaswag{};
    std::optional<TextSampler> sampler{};
    NoiseChoice noise{SmallBatches::none, ""};
    bool reduce_in_bf16 = false;
    AdamWSettings optimizer{};
    Schedule schedule{};
    RunControl::Settings control{};
    std::optional<double> peak_flops{};             // of all ranks' devices together; empty: not known

    bool measures_noise() const { return noise.small_batches != SmallBatches::none; }
    GradientExchange::Settings exchange() const {
        return {.sharding = setup.sharding, .small_batches = noise.small_batches, .reduce_in_bf16 = reduce_in_bf16,
                .may_stay_local = optimizer.onebit.has_value()};
    }
};

// Throws Error for options that do not fit each other, the data or what the device can do. Whether the memory plan fits
// is asked apart (plan_memory, require_room), so that libraries can be chosen before, and the plan be shown.
// `resumption`: the checkpoint to go on from, or nullptr.
Plan make_plan(const Options& options, const Resumption* resumption, const Context& context);

// Puts the batches where the run before stopped, unless there are other data, and returns what has changed. Throws
// Error where it must not go on (changes_since()).
Changes go_on(Plan& plan, const Options& options, const Resumption& resumption);

}  // namespace llmc
