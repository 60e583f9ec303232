// run_plan.cpp - from options, data and checkpoint to the values of a run
#include "llmc/run/start/run_plan.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "kernels/base/error.h"
#include "kernels/base/integers.h"
#include "kernels/documents.h"
#include "llmc/base/number_text.h"
#include "llmc/base/value_text.h"
#include "llmc/model/outer_steps.h"
#include "llmc/run/control/run_control.h"
#include "llmc/run/control/run_health.h"
#include "llmc/run/log/throughput.h"
#include "llmc/text/bpe_merges.h"

namespace llmc {
namespace {

// In rows of seq_len tokens, of at most the first 2^24 tokens of the shard.
PackedDocuments count_documents(const Shard& shard, int seq_len) {
    const int end_of_text = shard.vocabulary().end_of_text;
    const auto read = shard.read(0, std::min(shard.tokens(), std::int64_t(1) << 24));
    const std::vector<int> ids(read.begin(), read.end()),
                           starts = kernels::document_starts(ids, seq_len, end_of_text);
    PackedDocuments counts{.tokens = std::ssize(ids), .rows = ceil_div(std::ssize(ids), seq_len)};
    for (std::size_t i = 0; i < ids.size(); ++i) {
        const int position = int(i % std::size_t(seq_len)), keys = position - starts[i] + 1;
        counts.ends_of_text += ids[i] == end_of_text;
        counts.parts += keys == 1;
        counts.longest = std::max<std::int64_t>(counts.longest, keys);
        counts.pairs += keys;
        counts.all_pairs += position + 1;
    }
    return counts;
}

// Only rank 0 reads prompts, samples and saves; other hosts need no merges. A model whose own tokenizer cannot be used
// is trained without one.
void choose_tokenizer(RunPlan& plan, const RunSettings& o, const RunFiles& files, const std::filesystem::path& model,
                      int rank) {
    const Vocabulary vocabulary = files.vocabulary();
    require(o.model.merges.empty() || vocabulary == kGpt2Vocabulary, "--merges", "set for shards of another vocabulary",
            "shards of GPT-2's 50257 ids", "leave it out");
    if (rank == 0 && vocabulary.merges != 0) {
        plan.tokenizer = bpe_of_data(files, is_model_name(model.string()) ? std::filesystem::path() : model);
    } else if (vocabulary != kGpt2Vocabulary || rank != 0) {
        plan.tokenizer = tokenizer_for(vocabulary, "");
    } else if (!o.model.merges.empty()) {
        plan.tokenizer = tokenizer_for(vocabulary, o.model.merges);
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
        plan.tokenizer_note =
            vocabulary.merges == 0
                ? "no tokenizer of " + std::to_string(vocabulary.size) + " ids is known"
                : "the folder of the shards has no tokenizer.json of " + describe(vocabulary) + " (dev/tokenize)";
    if (o.checkpoints.output_dir.empty() && o.samples.every == 0) plan.tokenizer_note.clear();
    if (!plan.tokenizer_note.empty())
        plan.tokenizer_note = "samples are ids, and checkpoints have no tokenizer: " + plan.tokenizer_note;
}

// Checkpoints of a model that has added tokens to GPT-2's keep its own tokenizer and end of text. Only rank 0 saves.
void choose_tokenizer_files(RunPlan& plan, const RunSettings& o, Vocabulary vocabulary, const StartingPoint& start,
                            int rank) {
    plan.end_of_text = vocabulary.end_of_text;
    plan.tokenizer_files = tokenizer_files(*plan.tokenizer, start.config.max_seq_len);
    if (rank != 0 || o.checkpoints.output_dir.empty() || o.eval_only) return;
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
    if (o.samples.every == 0) plan.tokenizer_note.clear();  // it says that checkpoints have none
}

Schedule schedule_of(const RunSettings& s, const StepPlan& steps) {
    Schedule schedule = s.schedule.curve;
    schedule.warmup_steps = steps.in_first_steps(s.schedule.warmup_of(steps));
    // A schedule of sizes has the length in tokens, though the last step may end before or after it.
    if (steps.length() && !s.batch.schedule.empty())
        schedule.total_steps = double(*steps.length()) / double(steps.at(1).positions);
    else if (steps.total) schedule.total_steps = steps.in_first_steps(*steps.total);
    return schedule;
}

// `steps` with the number of them that the options request. `data_after`: of RunIdentity.
StepPlan with_total(StepPlan steps, const RunSettings& o, const DataLoader* loader, std::int64_t data_after) {
    if (o.length.tokens > 0) steps.set_length(o.length.tokens, /*within=*/false);
    else if (o.length.steps > 0) steps.total = o.length.steps;
    else if (!o.length.is_timed() && loader)
        steps.set_length(steps.positions_in(data_after) + loader->positions_in(o.length.passes()),
                         /*within=*/true);
    else steps.total.reset();
    return steps;
}

std::string length_of(const StepPlan& steps, const RunSettings& o) {
    return o.length.is_timed() ? minutes_text(o.length.minutes) : counted(steps.total.value_or(0), "step");
}

// "learning rate at step 401: 3.00e-04 -> 1.06e-03; the schedule is now of 600 steps"; "": the same. The steps of
// another amount of data, and with them the rate before, are not known.
std::string change_of_rate(const RunPlan& plan, const RunSettings& before, const TrainerState& state,
                           const DataLoader* loader, bool new_data) {
    if (plan.is_complete()) return "";
    const BatchSchedule same{{0, state.last_step_tokens()}};
    const BatchSchedule sizes = before.batch.schedule.empty() ? same : sizes_of_steps(before.batch, state.run.ranks);
    const StepPlan then = with_total({{}, sizes, state.batches, plan.first_step}, before, loader, state.run.data_after);
    const auto rate = [&](const StepPlan& steps, const RunSettings& o) {
        const double all = o.length.minutes * 60,
                     share = o.length.is_timed() ? share_of_time(plan.seconds_before, plan.tasks_before, all) : 0;
        return schedule_of(o, steps).learning_rate(steps.at(plan.first_step + 1), share);
    };
    const double old = rate(then, before), now = rate(plan.steps, plan.settings);
    const bool known = !new_data || before.length.has_steps() || before.length.is_timed();
    if (known && old == now) return "";
    const std::string length = length_of(plan.steps, plan.settings);
    return "learning rate at step " + std::to_string(plan.first_step + 1) + ": " +
           (known ? format("%.3g -> ", old) : "") + format("%.3g", now) +
           (known && length == length_of(then, before) ? "" : "; the schedule is now of " + length);
}

// The number of steps, learning rate and optimizer: not for --eval-only.
void plan_training(RunPlan& plan, const DataLoader* loader, std::span<const int> nodes) {
    const RunSettings& s = plan.settings;
    plan.steps = with_total(plan.steps, s, loader, plan.identity.data_after);
    const std::int64_t warmup = plan.warmup_steps();
    const std::vector<BatchChange> sizes = plan.steps.changes();
    const std::string& schedule = s.batch.schedule;
    require(!plan.steps.total || schedule.empty() || sizes.back().step < *plan.steps.total, "--batch-schedule",
            schedule, "sizes that begin within the " + counted(plan.steps.total.value_or(0), "step") + " of the run",
            "remove the last one, or train longer");
    if (s.optimizer.kind->constant_batch && !plan.steps.is_constant())
        fail(schedule.empty() ? "--total-batch-tokens" : "--batch-schedule",
             schedule.empty() ? std::to_string(sizes.back().tokens) : schedule,
             std::to_string(sizes.front().tokens) + " tokens in every step with --optimizer " +
                 name_of(s.optimizer.kind, kOptimizers) + ", whose second moment freezes with the noise of one size",
             "use -d " + std::to_string(sizes.front().tokens) + (schedule.empty() ? "" : " instead of it") +
                 ", or another optimizer");
    require(!s.data.overfit_batch || plan.steps.is_constant(), "--total-batch-tokens", sizes.back().tokens,
            std::to_string(sizes.front().tokens) + ", as before, with --overfit-batch, which repeats the first step");
    plan.schedule = schedule_of(s, plan.steps);
    // As for --max-steps: the learning rate would never reach its peak.
    const std::int64_t in_tokens = s.schedule.warmup_tokens;
    require(!plan.steps.total || warmup <= *plan.steps.total, in_tokens > 0 ? "--warmup-tokens" : "--warmup-steps",
            in_tokens > 0 ? std::to_string(in_tokens) + ", " + counted(warmup, "step") : std::to_string(warmup),
            "at most the " + counted(plan.steps.total.value_or(0), "step") + " of " +
                (s.length.tokens > 0  ? "--max-tokens " + std::to_string(s.length.tokens)
                 : s.length.steps > 0 ? "--max-steps"
                                      : "--epochs " + std::to_string(s.length.passes())));
    plan.optimizer.own = optimizer_settings(s, warmup, nodes);
    plan.optimizer.outer.last_step = plan.steps.total;
    if (plan.world) check_outer_steps(plan.optimizer.outer, plan.setup.sharding);
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
    const RunSettings& o = plan.settings;
    const std::int64_t local_after = outer_of(resumption).local_after;
    std::int64_t& start_step = plan.optimizer.outer.start_step;
    start_step = local_after >= 0 ? local_after : std::max(start_step, resumption.state.step);
    const ModelConfig& config = plan.setup.config;
    if (is_model_name(o.model.init)) {
        ModelConfig named = model_by_name(o.model.init, vocabulary.size).config;
        named.vocabulary = config.vocabulary;  // the checkpoint's, which may be larger than the data's
        const std::string& before = resumption.settings.model.init;
        require(named == config || before == o.model.init, "--init", in_quotes(o.model.init),
                "the model of the checkpoint, " + describe(config), "use " + before);
        require(named == config, "the model in " + resumption.folder.string(), describe(config),
                describe(named) + ", which --init " + o.model.init + " names",
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
        o.length.tokens > 0  ? std::pair("--max-tokens", made)
        : o.length.steps > 0 ? std::pair("--max-steps", plan.first_step)
                          : std::pair("--epochs", ceil_div(made - of_other_data, loader->positions_in(1)));
    fail("the number of steps of the whole run", *plan.steps.total,
         "at least the " + std::to_string(plan.first_step) + " that the checkpoint has completed",
         "increase " + (flag + (" to at least " + std::to_string(least))));
}

}  // namespace

RunPlan plan_model(const RunSettings& given, const RunFiles& files, const StartingPoint& start,
                   const Resumption* resumption, std::span<const int> nodes, const Context& context) {
    const int rank = context.world->rank(),
              ranks = given.dry_run.ranks > 0 ? int(given.dry_run.ranks) : context.world->size();
    const Vocabulary vocabulary = files.vocabulary();
    RunPlan plan{.settings = given, .table = ParameterTable(start.config)};
    const RunSettings& s = plan.settings;
    choose_tokenizer(plan, s, files, start.checkpoint ? start.path : std::filesystem::path(s.model.init), rank);
    choose_tokenizer_files(plan, s, vocabulary, start, rank);
    plan.setup = {.config = start.config, .dtype = s.precision.dtype, .recompute = s.precision.recompute,
                  .training = !s.eval_only, .fp8 = s.eval_only ? Fp8::off : s.precision.fp8,
                  .sharding = {.stage = int(s.exchange.zero_stage), .rank = rank, .ranks = ranks,
                               .whole_matrices = !s.eval_only && s.optimizer.kind->whole_matrices}};
    require_fp8(plan.setup.fp8, plan.setup.config, context.device);
    if (s.data.document_mask) plan.setup.end_of_text = vocabulary.end_of_text;
    plan.optimizer = s.optimizer;
    if (s.precision.stochastic_rounding) plan.optimizer.rounding_seed = std::uint64_t(s.seed);
    // For the memory plan; plan_steps() knows the warm-up in steps.
    plan.optimizer.own = optimizer_settings(s, std::max(s.schedule.warmup_steps, s.schedule.warmup_tokens), nodes);
    if (s.optimizer.outer.every > 0) {
        Sharding& worker = plan.setup.sharding;
        plan.world = Sharding{.rank = rank, .ranks = ranks, .whole_matrices = worker.whole_matrices};
        worker.ranks = ranks_of_worker(s.optimizer.outer, ranks);
        worker.rank = rank % worker.ranks;
        require(worker.ranks > 1 || s.noise.estimator != NoiseEstimator::rank, "--noise-scale",
                "rank with --outer-steps",
                "auto, micro or off: the ranks of local steps have no gradient in common", "use auto");
    }
    plan.peak_flops = peak_flops(context.device, plan.setup.dtype, s.precision.tf32);
    if (plan.peak_flops) *plan.peak_flops *= ranks;
    plan.identity = {.ranks = ranks, .training_data = files.train_facts};
    if (files.val) plan.identity.validation_data = files.val_facts;
    if (files.hellaswag) plan.identity.hellaswag = files.hellaswag_facts;
    if (resumption) {
        const RunIdentity& before = resumption->state.run;
        const bool same_data = are_same(before.training_data, files.train_facts);
        plan.identity.data_after = same_data ? before.data_after : resumption->state.step;
    }
    plan.ranks_here = int(std::ranges::count(nodes, nodes[std::size_t(rank)]));
    return plan;
}

void plan_steps(RunPlan& plan, const RunFiles& files, const DataLoader* loader, const Resumption* resumption,
                std::span<const int> nodes) {
    const RunSettings& s = plan.settings;
    if (const ShardSet* const shards = files.train ? files.train.get() : files.val.get();
        shards && s.data.document_mask)
        plan.documents = count_documents((*shards)[0], int(s.batch.seq_len));
    plan.identity.options = JsonValue(to_json(s));
    if (!s.eval_only) plan_training(plan, loader, nodes);
    if (resumption) plan_resumption(plan, files.vocabulary(), loader, *resumption);
    if (plan.world) plan.steps.set_workers(int(plan.optimizer.outer.workers), plan.optimizer.outer.start_step);
    require(!plan.world || s.exchange.zero_stage < 2 || plan.optimizer.outer.start_step <= plan.first_step,
            "--outer-start-step", plan.optimizer.outer.start_step,
            "at most " + std::to_string(plan.first_step) + " with -z 2, whose gradients are divided within a worker",
            "use -z 1; or make those steps without --outer-steps, and resume with it");
}

Changes check_resumption(const RunPlan& plan, const RunBatches& batches, const Resumption& resumption) {
    const RunSettings& options = plan.settings;
    const bool of_worker = resumption.state.state_files.contains(kOuterWorker);
    const char* const within = " was saved within a round";
    require(plan.world || !of_worker, "--outer-steps", 0,
            "that of the run, because " + resumption.folder.string() + within,
            "resume from an older checkpoint, or keep it");
    require(!of_worker || !plan.is_complete(), "the number of steps", plan.first_step,
            "more, because " + resumption.folder.string() + within, "increase --max-steps");
    Changes changes = changes_since(resumption.state.run, plan.identity, options.checkpoints.allow_new_data);
    const RunSettings& then = resumption.settings;
    const auto name = [](const RunSettings& of) { return name_of(of.optimizer.kind, kOptimizers); };
    if (then.optimizer.kind != options.optimizer.kind)
        fail("--optimizer", name(options), name(then) + ", as in the checkpoint",
             "use that; or start a new run from the checkpoint's model with --init");
    std::int64_t targets = 0;
    for (const ValidationSet& set : batches.validation) targets += set.batches.available();
    const auto validates_on = [&](const RunSettings& o) {  // if the shards are the same
        return std::pair(std::min(o.validation.tokens, targets), o.validation.spread || o.validation.tokens >= targets);
    };
    changes.validation |= targets > 0 && validates_on(then) != validates_on(options);
    if (changes.validation && resumption.state.health.best_validation_after >= 0)
        changes.options.push_back("validations: of other targets; the lowest loss and the count of --stop-after start "
                                  "again");
    plan.optimizer.kind->check_resumption(plan.optimizer_run(), own_flags(then.optimizer), own_flags(options.optimizer),
                                          (resumption.folder / kStateName).string());
    // Otherwise every attempt would make one more step, and save it.
    if (!changes.data && resumption.state.without_update >= RunHealth::kMostStepsWithoutUpdate &&
        then.optimizer.max_loss_z == options.optimizer.max_loss_z &&
        then.optimizer.max_norm_z == options.optimizer.max_norm_z)
        fail("the number of consecutive steps without an update at the end of the checkpoint",
             resumption.state.without_update, "fewer than " + std::to_string(RunHealth::kMostStepsWithoutUpdate),
             "change or remove --skip-loss-z and --skip-norm-z, or resume from an earlier checkpoint");
    const std::string rate = change_of_rate(plan, then, resumption.state, batches.loader.get(), changes.data);
    if (!rate.empty()) changes.options.push_back(rate);
    return changes;
}

}  // namespace llmc
