// plan.cpp - from options and shards to the steps of a run
#include "llmc/run/plan.h"

#include <limits>

#include "kernels/device/error.h"
#include "llmc/base/counted.h"
#include "llmc/data/bpe_merges.h"
#include "llmc/data/tokenizer_files.h"
#include "llmc/run/start_facts.h"
#include "llmc/run/step_log.h"
#include "llmc/run/throughput.h"

namespace llmc {
namespace {

Data open_data(const Options& options) {
    Data data;
    if (!options.train_data.empty()) data.train = std::make_unique<ShardSet>(options.train_data);
    if (!options.val_data.empty()) data.val = std::make_unique<ShardSet>(options.val_data);
    if (data.train && data.val && data.train->vocabulary() != data.val->vocabulary())
        fail("the vocabulary of " + options.val_data, describe(data.val->vocabulary()),
             "that of " + options.train_data + ", " + describe(data.train->vocabulary()),
             "tokenize both with the same tokenizer");
    data.train_facts = facts_of_shards("training", data.train.get());
    data.val_facts = facts_of_shards("validation", data.val.get());
    return data;
}

HellaSwagBatches open_hellaswag(const Options& o, Vocabulary vocabulary) {
    HellaSwagFile file(o.hellaswag);
    if (file.vocabulary() != vocabulary)
        fail("the vocabulary of " + o.hellaswag, describe(file.vocabulary()),
             "that of the shards, " + describe(vocabulary), "tokenize both with the same tokenizer");
    return {std::move(file), int(o.micro_batch), int(o.seq_len)};
}

// Positions of one update over all ranks: whole micro-batches of every rank.
std::int64_t step_tokens(const Options& o, const BatchShape& batch) {
    const std::int64_t at_once = batch.global_positions();
    const std::int64_t tokens = o.total_batch_tokens > 0 ? o.total_batch_tokens : at_once;
    const std::int64_t below = tokens / at_once * at_once;
    if (tokens % at_once != 0)
        fail("--total-batch-tokens", tokens,
             "a multiple of --micro-batch * --seq-len * ranks = " + std::to_string(o.micro_batch) + " * " +
                 std::to_string(o.seq_len) + " * " + std::to_string(batch.world) + " = " + std::to_string(at_once),
             tokens < at_once
                 ? "the nearest is " + std::to_string(at_once)
                 : "the nearest are " + std::to_string(below) + " and " + std::to_string(below + at_once));
    require(tokens / at_once <= std::numeric_limits<int>::max(), "--total-batch-tokens", tokens,
            "at most 2147483647 micro-batches of " + counted(at_once, "token"));
    return tokens;
}

// Rank 0 alone prompts, samples and saves; other hosts need no merges. A model's own other table is no reason to refuse
// what can be trained without one.
void choose_tokenizer(Plan& plan, const Options& o, const std::filesystem::path& model, int rank) {
    const Vocabulary vocabulary = plan.data.vocabulary();
    require(o.merges.empty() || vocabulary == kGpt2Vocabulary, "--merges", "given for shards of another vocabulary",
            "shards of GPT-2's 50257 ids", "leave it out");
    if (vocabulary != kGpt2Vocabulary || rank != 0) {
        plan.tokenizer = tokenizer_for(vocabulary, "");
    } else if (!o.merges.empty()) {
        plan.tokenizer = tokenizer_for(vocabulary, o.merges);
    } else {
        try {
            plan.tokenizer = load_tokenizer(model, vocabulary);
            if (!plan.tokenizer->has_table())
                plan.tokenizer_note = "GPT-2's merges are not at hand (scripts/get_gpt2_tokenizer.sh, or --merges)";
        } catch (const Error& error) {
            plan.tokenizer = tokenizer_for(vocabulary, "");
            plan.tokenizer_note = error.what();
        }
    }
    if (rank == 0 && plan.tokenizer_note.empty() && !plan.tokenizer->has_table())
        plan.tokenizer_note = "no tokenizer of " + std::to_string(vocabulary.size) + " ids is known";
    if (o.output_dir.empty() && o.sample_every == 0) plan.tokenizer_note.clear();
    if (!plan.tokenizer_note.empty())
        plan.tokenizer_note = "samples are ids, and checkpoints carry no tokenizer: " + plan.tokenizer_note;
}

// What only training needs: batches, the number of steps, optimizer, learning rate and noise scale.
void plan_training(Plan& plan, const Options& o, const BatchShape& batch) {
    const auto estimator = value_by_name("--noise-scale", o.noise_scale, kNoiseEstimators);
    plan.noise = choose_noise_estimator(estimator, int(o.zero_stage), batch.world, plan.micro_batches);
    const auto seed = std::uint64_t(o.seed);
    plan.loader = std::make_unique<DataLoader>(
        *plan.data.train, DataLoaderOptions{.shape = batch, .micro_batches = plan.micro_batches,
                                            .shuffle_seed = o.shuffle ? std::optional(seed) : std::nullopt,
                                            .mask_document_start = o.mask_document_start, .pad = o.pad_last});
    plan.total_steps = o.max_steps > 0 ? o.max_steps : plan.loader->steps_in(o.epochs);
    // As --max-steps refuses it: the learning rate would end on its way to the peak.
    require(o.warmup_steps <= plan.total_steps, "--warmup-steps", o.warmup_steps,
            "at most the " + counted(plan.total_steps, "step") + " of --epochs " + std::to_string(o.epochs));
    plan.optimizer = {.beta1 = float(o.beta1), .beta2 = float(o.beta2), .eps = float(o.eps),
                      .weight_decay = float(o.weight_decay), .max_grad_norm = float(o.grad_clip),
                      .max_loss_z = o.skip_loss_z, .max_norm_z = o.skip_norm_z,
                      .rounding_seed = o.stochastic_rounding ? std::optional(seed) : std::nullopt};
    if (o.optimizer == "onebit-adam")
        plan.optimizer.onebit = OnebitSettings{
            .freeze_after = freeze_after(o), .lr_warmup_steps = o.warmup_steps,
            .scale = value_by_name("--onebit-scale", o.onebit_scale, kOnebitScales),
            .space = value_by_name("--onebit-space", o.onebit_space, kOnebitSpaces), .exclude = o.onebit_exclude,
            .frozen_only = o.onebit_bits == 32};
    plan.schedule = {.kind = value_by_name("--lr-schedule", o.lr_schedule, kLrSchedules), .peak = o.lr,
                     .final_fraction = o.final_lr_fraction, .warmup_steps = o.warmup_steps,
                     .total_steps = plan.total_steps};
    plan.control = {.total_steps = plan.total_steps, .val_every = plan.data.val ? o.val_every : 0,
                    .hellaswag_every = plan.hellaswag ? o.hellaswag_every : 0,
                    .sample_every = o.sample_every, .checkpoint_every = o.checkpoint_every,
                    .max_minutes = o.max_minutes, .checkpoint_minutes = o.checkpoint_minutes,
                    .saves = !o.output_dir.empty()};
}

}  // namespace

Plan make_plan(const Options& o, const Resumption* resumption, const Context& context) {
    const int rank = context.communicator->rank(), ranks = context.communicator->size();
    Data data = open_data(o);
    const Vocabulary vocabulary = data.vocabulary();
    StartingPoint start = starting_point(resumption ? resumption->folder.string() : o.init, o, vocabulary);
    ParameterTable table(start.config);
    Plan plan{.data = std::move(data), .start = std::move(start), .table = std::move(table)};
    choose_tokenizer(plan, o, resumption ? resumption->folder : std::filesystem::path(o.init), rank);
    plan.setup = {.config = plan.start.config, .dtype = value_by_name("--dtype", o.dtype, kDTypes),
                  .shape = {int(o.micro_batch), int(o.seq_len)},
                  .recompute = value_by_name("--recompute", o.recompute, kRecomputeLevels), .training = !o.eval_only,
                  .sharding = {.stage = int(o.zero_stage), .rank = rank, .ranks = ranks}};
    plan.reduce_in_bf16 = o.reduce_dtype == "bf16";
    plan.peak_flops = peak_flops(context.device, plan.setup.dtype, o.tf32);
    if (plan.peak_flops) *plan.peak_flops *= ranks;

    const BatchShape batch{.micro_batch = int(o.micro_batch), .seq_len = int(o.seq_len), .rank = rank, .world = ranks};
    plan.step_tokens = step_tokens(o, batch);
    plan.micro_batches = int(plan.step_tokens / batch.global_positions());
    plan.run = {.step_tokens = plan.step_tokens, .ranks = ranks, .options = to_json(o),
                .training_data = plan.data.train_facts};
    if (plan.data.val) plan.run.validation_data = plan.data.val_facts;
    if (!o.hellaswag.empty()) {
        plan.hellaswag = open_hellaswag(o, vocabulary);
        plan.run.hellaswag = facts_of_hellaswag(&plan.hellaswag->file());
    }
    if (!o.eval_only) plan_training(plan, o, batch);
    if (resumption) {
        if (is_model_name(o.init)) {
            ModelConfig named = model_by_name(o.init, vocabulary.size).config;
            named.vocabulary = plan.start.config.vocabulary;  // a checkpoint's stays, whatever the data's
            const std::string before = resumption->state.run.options.value("init", o.init);
            require(named == plan.start.config || before == o.init, "--init", in_quotes(o.init),
                    "the model of the checkpoint, " + describe(plan.start.config), "give " + before);
            require(named == plan.start.config, "the model in " + resumption->folder.string(),
                    describe(plan.start.config), describe(named) + ", which --init " + o.init + " names",
                    "the checkpoint's config.json has been changed: restore it");
        }
        plan.first_step = resumption->state.step;
        plan.frozen_after = resumption->state.optimizer.onebit.frozen_after;
        require(plan.first_step <= plan.total_steps, "the number of steps to make", plan.total_steps,
                "at least " + std::to_string(plan.first_step) + ", which --resume goes on from", "raise --max-steps");
    }
    if (plan.data.val) plan.validation.emplace(*plan.data.val, o.val_tokens, batch, o.mask_document_start);
    if (o.sample_every > 0)
        plan.sampler.emplace(rank == 0 ? o.prompt : "",
                             GenerationSettings{.tokens = int(o.sample_tokens), .samples = int(o.samples),
                                                .sampling = {.top_k = int(o.top_k), .top_p = o.top_p,
                                                             .temperature = o.temperature},
                                                .seed = std::uint64_t(o.seed), .window = int(o.seq_len)},
                             plan.tokenizer);
    return plan;
}

Changes go_on(Plan& plan, const Options& options, const Resumption& resumption) {
    const Changes changes = changes_since(resumption.state.run, plan.run, options.allow_new_data);
    // Else every try would make one more step, and save it.
    const nlohmann::json &before = resumption.state.run.options, &now = plan.run.options;
    const auto same = [&](const char* name) { return before.value(name, 0.0) == now.value(name, 0.0); };
    const auto same_text = [&](const char* name, const char* absent) {
        return before.value(name, absent) == now.value(name, absent);
    };
    if (!same_text("optimizer", "adamw"))
        fail("--optimizer", options.optimizer, before.value("optimizer", "adamw") + ", which the checkpoint is of",
             "give it; or start a new run from the checkpoint's model by --init");
    const std::int64_t frozen_after = resumption.state.optimizer.onebit.frozen_after,
                       updates = resumption.state.optimizer.updates;
    if (const auto& onebit = plan.optimizer.onebit; onebit && frozen_after == 0 && onebit->freeze_after > 0)
        require(onebit->freeze_after > updates, "--onebit-freeze-step", onebit->freeze_after,
                "more than the " + counted(updates, "update") + " of the checkpoint, which it has not frozen");
    if (frozen_after > 0 && !same_text("onebit-freeze-step", "auto") &&
        options.onebit_freeze_step != std::to_string(frozen_after))
        fail("--onebit-freeze-step", in_quotes(options.onebit_freeze_step),
             in_quotes(before.value("onebit-freeze-step", "auto")) + ", as the second moment was frozen after " +
                 counted(frozen_after, "update"), "give it");
    if (frozen_after > 0 && !same_text("onebit-exclude", ""))
        fail("--onebit-exclude", in_quotes(options.onebit_exclude),
             in_quotes(before.value("onebit-exclude", "")) + ", as the second moments were frozen", "give it");
    if (resumption.state.without_update >= StepLog::kMostStepsWithoutUpdate && same("skip-loss-z") &&
        same("skip-norm-z"))
        fail("the number of steps in a row without an update, with which the checkpoint ends,",
             resumption.state.without_update, "fewer than " + std::to_string(StepLog::kMostStepsWithoutUpdate),
             "give another --skip-loss-z or --skip-norm-z, or none, or go on from an earlier checkpoint");
    // The one batch of --overfit-batch is the first.
    if (!changes.data && !options.overfit_batch) plan.loader->seek(resumption.state.data);
    return changes;
}

}  // namespace llmc
