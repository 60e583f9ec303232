// run_plan.cpp - from options, data and checkpoint to the values of a run
#include "llmc/run/start/run_plan.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "kernels/base/error.h"
#include "kernels/base/integers.h"
#include "llmc/base/number_text.h"
#include "llmc/base/value_text.h"
#include "llmc/model/outer_steps.h"
#include "llmc/run/control/run_control.h"
#include "llmc/run/control/run_health.h"
#include "llmc/run/log/throughput.h"
#include "llmc/text/bpe_merges.h"

namespace llmc {
namespace {

// Only rank 0 reads prompts, samples and saves; other hosts need no merges. A model whose own tokenizer cannot be used
// is trained without one.
void choose_tokenizer(RunPlan& plan, const Options& o, Vocabulary vocabulary, const std::filesystem::path& model,
                      int rank) {
    require(o.merges.empty() || vocabulary == kGpt2Vocabulary, "--merges", "set for shards of another vocabulary",
            "shards of GPT-2's 50257 ids", "leave it out");
    if (vocabulary != kGpt2Vocabulary || rank != 0) {
        plan.tokenizer = tokenizer_for(vocabulary, "");
    } else if (!o.merges.empty()) {
        plan.tokenizer = tokenizer_for(vocabulary, o.merges);
    } else {
        try {
            plan.tokenizer = load_tokenizer(model, vocabulary);
            if (!plan.tokenizer->has_table())
                plan.tokenizer_note = "GPT-2's merges are not found (scripts/get_gpt2_tokenizer.sh, or --merges)";
        } catch (const Error& error) {
            plan.tokenizer = tokenizer_for(vocabulary, "");
            plan.tokenizer_note = error.what();
        }
    }
    if (rank == 0 && plan.tokenizer_note.empty() && !plan.tokenizer->has_table())
        plan.tokenizer_note = "no tokenizer of " + std::to_string(vocabulary.size) + " ids is known";
    if (o.output_dir.empty() && o.sample_every == 0) plan.tokenizer_note.clear();
    if (!plan.tokenizer_note.empty())
        plan.tokenizer_note = "samples are ids, and checkpoints have no tokenizer: " + plan.tokenizer_note;
}

// Checkpoints of a model that has added tokens to GPT-2's keep its own tokenizer and end of text. Only rank 0 saves.
void choose_tokenizer_files(RunPlan& plan, const Options& o, Vocabulary vocabulary, const StartingPoint& start,
                            int rank) {
    plan.end_of_text = vocabulary.end_of_text;
    plan.tokenizer_files = tokenizer_files(*plan.tokenizer, start.config.max_seq_len);
    if (rank != 0 || o.output_dir.empty() || o.eval_only) return;
    if (!start.checkpoint || vocabulary != kGpt2Vocabulary || start.config.vocabulary <= vocabulary.size) return;
    const std::filesystem::path folder = std::filesystem::is_directory(start.path) ? start.path
                                                                                   : start.path.parent_path();
    const int theirs = start.checkpoint->end_of_text();
    TokenizerFiles files = read_tokenizer_files(folder);
    require(!files.empty() || theirs < vocabulary.size, folder.string() + "/tokenizer.json", "missing",
            "the tokenizer with the added token " + std::to_string(theirs) + ", the eos_token_id of config.json",
            "copy the model's tokenizer files to its folder");
    if (theirs >= 0) plan.end_of_text = theirs;
    if (files.empty()) return;
    plan.tokenizer_files = std::move(files);
    if (o.sample_every == 0) plan.tokenizer_note.clear();  // it says that checkpoints have none
}

std::int64_t warmup_of(const Options& o, const StepPlan& steps) {
    return o.warmup_tokens > 0 ? steps.steps_until(o.warmup_tokens) : o.warmup_steps;
}

Schedule schedule_of(const Options& o, const StepPlan& steps) {
    Schedule schedule{.kind = o.lr_schedule, .peak = o.lr,
                      .final_fraction = o.final_lr_fraction, .warmup_steps = steps.in_first_steps(warmup_of(o, steps)),
                      .cooldown = o.cooldown_fraction, .shape = o.cooldown_shape,
                      .batch_exponent = o.batch_lr_exponent};
    // A schedule of sizes has the length in tokens, though the last step may end before or after it.
    if (steps.length() && !o.batch_schedule.empty())
        schedule.total_steps = double(*steps.length()) / double(steps.at(1).positions);
    else if (steps.total) schedule.total_steps = steps.in_first_steps(*steps.total);
    return schedule;
}

// `steps` with the number of them that the options request. `data_after`: of RunIdentity.
StepPlan with_total(StepPlan steps, const Options& o, const DataLoader* loader, std::int64_t data_after) {
    if (o.max_tokens > 0) steps.set_length(o.max_tokens, /*within=*/false);
    else if (o.max_steps > 0) steps.total = o.max_steps;
    else if (!o.is_timed() && loader)
        steps.set_length(steps.positions_in(data_after) + loader->positions_in(o.passes()), /*within=*/true);
    else steps.total.reset();
    return steps;
}

std::string length_of(const StepPlan& steps, const Options& o) {
    return o.is_timed() ? minutes_text(o.max_minutes) : counted(steps.total.value_or(0), "step");
}

// "learning rate at step 401: 3.00e-04 -> 1.06e-03; the schedule is now of 600 steps"; "": the same. The steps of
// another amount of data, and with them the rate before, are not known.
std::string change_of_rate(const RunPlan& plan, const Options& before, const TrainerState& state,
                           const DataLoader* loader, bool new_data) {
    if (plan.is_complete()) return "";
    const BatchSchedule same{{0, state.last_step_tokens()}};
    const BatchSchedule sizes = before.batch_schedule.empty() ? same : sizes_of_steps(before, state.run.ranks);
    const StepPlan then = with_total({{}, sizes, state.batches, plan.first_step}, before, loader, state.run.data_after);
    const auto rate = [&](const StepPlan& steps, const Options& o) {
        const double all = o.max_minutes * 60,
                     share = o.is_timed() ? share_of_time(plan.seconds_before, plan.tasks_before, all) : 0;
        return schedule_of(o, steps).learning_rate(steps.at(plan.first_step + 1), share);
    };
    const double old = rate(then, before), now = rate(plan.steps, plan.options);
    const bool known = !new_data || before.has_steps() || before.is_timed();
    if (known && old == now) return "";
    const std::string length = length_of(plan.steps, plan.options);
    return "learning rate at step " + std::to_string(plan.first_step + 1) + ": " +
           (known ? format("%.3g -> ", old) : "") + format("%.3g", now) +
           (known && length == length_of(then, before) ? "" : "; the schedule is now of " + length);
}

// The number of steps, optimizer, learning rate and noise scale: not for --eval-only.
void plan_training(RunPlan& plan, const DataLoader* loader, std::span<const int> nodes) {
    const Options& o = plan.options;
    if (plan.world) {
        const Sharding& worker = plan.setup.sharding;
        require((worker.stage > 0) == (worker.ranks > 1), "--zero-stage", worker.stage,
                worker.ranks > 1
                    ? "1 or 2 with --outer-workers: the ranks of a worker divide the optimizer's state"
                    : "0 with --outer-steps: each rank is a worker of its own, which has nothing to shard",
                worker.ranks > 1 ? "use -z 1"
                : plan.world->ranks > 1 ? "use -z 0, or set --outer-workers to a smaller divisor of the number of ranks"
                                        : "use -z 0");
        require(worker.ranks > 1 || o.noise_scale != NoiseEstimator::rank, "--noise-scale", "rank with --outer-steps",
                "auto, micro or off: the ranks of local steps have no gradient in common", "use auto");
    }
    plan.noise = choose_noise_estimator(o.noise_scale, int(o.zero_stage), plan.setup.sharding.ranks,
                                        int(plan.steps.micro_batches(plan.steps.largest())));
    plan.steps = with_total(plan.steps, o, loader, plan.identity.data_after);
    const std::int64_t warmup = plan.warmup_steps = warmup_of(o, plan.steps);
    const std::vector<BatchChange> sizes = plan.steps.changes();
    require(!plan.steps.total || o.batch_schedule.empty() || sizes.back().step < *plan.steps.total, "--batch-schedule",
            o.batch_schedule,
            "sizes that begin within the " + counted(plan.steps.total.value_or(0), "step") + " of the run",
            "remove the last one, or train longer");
    if (o.optimizer->constant_batch && !plan.steps.is_constant())
        fail(o.batch_schedule.empty() ? "--total-batch-tokens" : "--batch-schedule",
             o.batch_schedule.empty() ? std::to_string(sizes.back().tokens) : o.batch_schedule,
             std::to_string(sizes.front().tokens) + " tokens in every step with --optimizer " +
                 name_of(o.optimizer, kOptimizers) + ", whose second moment freezes with the noise of one size",
             "use -d " + std::to_string(sizes.front().tokens) + (o.batch_schedule.empty() ? "" : " instead of it") +
                 ", or another optimizer");
    require(!o.overfit_batch || plan.steps.is_constant(), "--total-batch-tokens", sizes.back().tokens,
            std::to_string(sizes.front().tokens) + ", as before, with --overfit-batch, which repeats the first step");
    plan.schedule = schedule_of(o, plan.steps);
    // As for --max-steps: the learning rate would never reach its peak.
    require(!plan.steps.total || warmup <= *plan.steps.total,
            o.warmup_tokens > 0 ? "--warmup-tokens" : "--warmup-steps",
            o.warmup_tokens > 0 ? std::to_string(o.warmup_tokens) + ", " + counted(warmup, "step")
                                : std::to_string(warmup),
            "at most the " + counted(plan.steps.total.value_or(0), "step") + " of " +
                (o.max_tokens > 0  ? "--max-tokens " + std::to_string(o.max_tokens)
                 : o.max_steps > 0 ? "--max-steps"
                                   : "--epochs " + std::to_string(o.passes())));
    plan.optimizer = {.beta1 = float(o.beta1), .beta2 = float(o.beta2), .eps = float(o.eps),
                      .weight_decay = float(o.weight_decay), .max_grad_norm = float(o.grad_clip),
                      .scales_beta2 = o.batch_beta_scaling, .max_loss_z = o.skip_loss_z, .max_norm_z = o.skip_norm_z,
                      .rounding_seed = o.stochastic_rounding ? std::optional(std::uint64_t(o.seed)) : std::nullopt,
                      .kind = o.optimizer, .own = optimizer_settings(o, warmup, nodes)};
    plan.setup.sharding.whole_matrices = o.optimizer->whole_matrices;
    if (plan.world) {
        plan.world->whole_matrices = o.optimizer->whole_matrices;
        OuterSettings usual;
        if (o.outer_steps == 1) usual = {.learning_rate = 1, .momentum = 0};
        const auto given = [](double value, float otherwise) { return std::isnan(value) ? otherwise : float(value); };
        plan.optimizer.outer = {.every = o.outer_steps, .start_step = o.outer_start_step,
                                .learning_rate = given(o.outer_lr, usual.learning_rate),
                                .momentum = given(o.outer_momentum, usual.momentum),
                                .bits = int(o.outer_bits), .errors = o.outer_errors,
                                .error_decay = float(o.outer_error_decay),
                                .workers = plan.world->ranks / plan.setup.sharding.ranks,
                                .seq_len = o.seq_len, .last_step = plan.steps.total};
        require(o.outer_bits == 32 || plan.optimizer.outer.workers > 1, "--outer-bits", o.outer_bits,
                "32 with one worker, which sends nothing", "use --outer-bits 32, or more workers");
        require(!plan.steps.total || o.outer_start_step < *plan.steps.total, "--outer-start-step", o.outer_start_step,
                "less than the " + counted(*plan.steps.total, "step") + " of the run");
    }
}

// Of a checkpoint. Throws Error if its workers are not in the same round, or its files are those of another.
OuterCounts outer_of(const Resumption& resumption) {
    const TrainerState& state = resumption.state;
    const std::string file = (resumption.folder / kStateName).string();
    const OuterCounts outer = outer_counts(state.optimizer.own, state.step, file);
    const bool is_local = outer.local_after >= 0, in_round = is_local && outer.round_began < state.step;
    const std::int64_t workers = is_local ? state.run.ranks : 0;
    require(std::ssize(state.workers) == workers, file + ": the number of workers", state.workers.size(),
            std::to_string(workers), "restore the file from a copy");
    for (const OptimizerCounts& worker : state.workers)
        require(outer_counts(worker.own, state.step, file) == outer, file + ": workers", "in different rounds",
                "the same round", "restore the file from a copy");
    require(in_round == state.state_files.contains(kOuterWorker), file + ": round_began", outer.round_began,
            in_round ? "that of a checkpoint between two rounds, as there are no weights of workers"
                     : "less than the step, as there are weights of workers", "restore the file from a copy");
    return outer;
}

void plan_resumption(RunPlan& plan, Vocabulary vocabulary, const DataLoader* loader, const Resumption& resumption) {
    const Options& o = plan.options;
    const std::int64_t local_after = outer_of(resumption).local_after;
    std::int64_t& start_step = plan.optimizer.outer.start_step;
    start_step = local_after >= 0 ? local_after : std::max(start_step, resumption.state.step);
    const ModelConfig& config = plan.setup.config;
    if (is_model_name(o.init)) {
        ModelConfig named = model_by_name(o.init, vocabulary.size).config;
        named.vocabulary = config.vocabulary;  // the checkpoint's, which may be larger than the data's
        const std::string before = resumption.state.run.options->value("init", o.init);
        require(named == config || before == o.init, "--init", in_quotes(o.init),
                "the model of the checkpoint, " + describe(config), "use " + before);
        require(named == config, "the model in " + resumption.folder.string(), describe(config),
                describe(named) + ", which --init " + o.init + " names",
                "the checkpoint's config.json has been changed: restore it");
    }
    plan.first_step = resumption.state.step;
    plan.seconds_before = resumption.state.seconds;
    plan.tasks_before = resumption.state.tasks;
    plan.counts_before = resumption.state.optimizer;
    if (!plan.steps.total || plan.first_step <= *plan.steps.total) return;
    const std::int64_t made = plan.steps.positions_in(plan.first_step),
                       of_other_data = plan.steps.positions_in(plan.identity.data_after);
    const auto [flag, least] =
        o.max_tokens > 0  ? std::pair("--max-tokens", made)
        : o.max_steps > 0 ? std::pair("--max-steps", plan.first_step)
                          : std::pair("--epochs", ceil_div(made - of_other_data, loader->positions_in(1)));
    fail("the number of steps of the whole run", *plan.steps.total,
         "at least the " + std::to_string(plan.first_step) + " that the checkpoint has completed",
         "increase " + (flag + (" to at least " + std::to_string(least))));
}

}  // namespace

int ranks_of_worker(const Options& o, int ranks) {
    if (o.outer_steps == 0) return ranks;
    if (o.outer_workers == 0) return 1;
    require(ranks % o.outer_workers == 0, "--outer-workers", o.outer_workers,
            "a number that divides the " + counted(ranks, "rank"),
            "use --outer-workers auto -z 0 for workers of one rank each");
    return int(ranks / o.outer_workers);
}

RunPlan make_plan(const Options& o, const StepPlan& steps, const RunFiles& files, const DataLoader* loader,
                  const StartingPoint& start, const Resumption* resumption, std::span<const int> nodes,
                  const Context& context) {
    const int rank = context.world->rank(), ranks = steps.batch().world;
    const Vocabulary vocabulary = files.vocabulary();
    RunPlan plan{.options = o, .table = ParameterTable(start.config)};
    choose_tokenizer(plan, o, vocabulary, start.checkpoint ? start.path : std::filesystem::path(o.init), rank);
    choose_tokenizer_files(plan, o, vocabulary, start, rank);
    plan.setup = {.config = start.config, .dtype = o.dtype,
                  .shape = {int(o.micro_batch), int(o.seq_len)},
                  .recompute = o.recompute, .training = !o.eval_only,
                  .sharding = {.stage = int(o.zero_stage), .rank = rank, .ranks = ranks}};
    if (o.outer_steps > 0) {
        const int of_worker = ranks_of_worker(o, ranks);
        plan.world = Sharding{.rank = rank, .ranks = ranks};
        plan.setup.sharding.rank = rank % of_worker;
        plan.setup.sharding.ranks = of_worker;
    }
    plan.reduce_in_bf16 = o.reduce_dtype == kernels::DType::bf16;
    plan.peak_flops = peak_flops(context.device, plan.setup.dtype, o.tf32);
    if (plan.peak_flops) *plan.peak_flops *= ranks;
    plan.steps = steps;
    plan.identity = {.ranks = ranks, .options = JsonValue(to_json(o)), .training_data = files.train_facts};
    if (files.val) plan.identity.validation_data = files.val_facts;
    if (files.hellaswag) plan.identity.hellaswag = files.hellaswag_facts;
    if (resumption) {
        const RunIdentity& before = resumption->state.run;
        const bool same_data = are_same(before.training_data, files.train_facts);
        plan.identity.data_after = same_data ? before.data_after : resumption->state.step;
    }
    plan.ranks_here = int(std::ranges::count(nodes, nodes[std::size_t(rank)]));
    if (!o.eval_only) plan_training(plan, loader, nodes);
    if (resumption) plan_resumption(plan, vocabulary, loader, *resumption);
    plan.steps.set_workers(plan.optimizer.outer.workers, plan.optimizer.outer.start_step);
    require(!plan.world || o.zero_stage < 2 || plan.optimizer.outer.start_step <= plan.first_step,
            "--outer-start-step", plan.optimizer.outer.start_step,
            "at most " + std::to_string(plan.first_step) + " with -z 2, whose gradients are divided within a worker",
            "use -z 1; or make those steps without --outer-steps, and resume with it");
    if (o.sample_every > 0)
        plan.sampler.emplace(rank == 0 ? o.prompt : "",
                             GenerationSettings{.tokens = int(o.sample_tokens), .samples = int(o.samples),
                                                .sampling = {.top_k = int(o.top_k), .top_p = o.top_p,
                                                             .temperature = o.temperature},
                                                .seed = std::uint64_t(o.seed), .window = int(o.seq_len)},
                             plan.tokenizer);
    return plan;
}

Changes check_resumption(const RunPlan& plan, const RunBatches& batches, const Resumption& resumption) {
    const Options& options = plan.options;
    const bool of_worker = resumption.state.state_files.contains(kOuterWorker);
    const char* const within = " was saved within a round";
    require(plan.world || !of_worker, "--outer-steps", 0,
            "that of the run, because " + resumption.folder.string() + within,
            "resume from an older checkpoint, or keep it");
    require(!of_worker || !plan.is_complete(), "the number of steps", plan.first_step,
            "more, because " + resumption.folder.string() + within, "increase --max-steps");
    Changes changes = changes_since(resumption.state.run, plan.identity, options.allow_new_data);
    const nlohmann::json &before = *resumption.state.run.options, &now = *plan.identity.options;
    const auto same = [&](const char* name) { return before.value(name, 0.0) == now.value(name, 0.0); };
    const auto same_text = [&](const char* name, const char* absent) {
        return before.value(name, absent) == now.value(name, absent);
    };
    if (!same_text("optimizer", "adamw"))
        fail("--optimizer", name_of(options.optimizer, kOptimizers),
             before.value("optimizer", "adamw") + ", as in the checkpoint",
             "use that; or start a new run from the checkpoint's model with --init");
    const std::string file = (resumption.folder / "trainer_state.json").string();
    const Options then = continued({}, before, file).options;
    std::int64_t targets = 0;
    for (const ValidationSet& set : batches.validation) targets += set.batches.available();
    const auto validates_on = [&](const Options& o) {  // if the shards are the same
        return std::pair(std::min(o.val_tokens, targets), o.val_spread || o.val_tokens >= targets);
    };
    // Without facts of the shards, as of older versions, their patterns say whether they are the same.
    const bool others = resumption.state.run.validation_data.empty() && then.val_data != options.val_data;
    changes.validation |= targets > 0 && (others || validates_on(then) != validates_on(options));
    if (changes.validation && resumption.state.health.best_validation_after >= 0)
        changes.options.push_back("validations: of other targets; the lowest loss and the count of --stop-after start "
                                  "again");
    plan.optimizer.kind->check_resumption(plan.optimizer_run(), resumption.state.run.options, plan.identity.options,
                                          file);
    // Otherwise every attempt would make one more step, and save it.
    if (!changes.data && resumption.state.without_update >= RunHealth::kMostStepsWithoutUpdate && same("skip-loss-z") &&
        same("skip-norm-z"))
        fail("the number of consecutive steps without an update at the end of the checkpoint",
             resumption.state.without_update, "fewer than " + std::to_string(RunHealth::kMostStepsWithoutUpdate),
             "change or remove --skip-loss-z and --skip-norm-z, or resume from an earlier checkpoint");
    const std::string rate = change_of_rate(plan, then, resumption.state, batches.loader.get(), changes.data);
    if (!rate.empty()) changes.options.push_back(rate);
    return changes;
}

}  // namespace llmc
