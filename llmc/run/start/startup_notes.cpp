// startup_notes.cpp - notes of the plan, the data, the machine and the starting point
#include "llmc/run/start/startup_notes.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <span>
#include <utility>

#include "kernels/device/control_groups.h"
#include "llmc/base/number_text.h"
#include "llmc/base/value_text.h"
#include "llmc/model/outer_steps.h"
#include "llmc/run/checkpoint/checkpoint_writer.h"
#include "llmc/run/start/train_further.h"

namespace llmc {
namespace {

// "" if the disk of --output-dir has room for the checkpoints that are on it at once, or its room is not known.
std::string note_on_disk(const RunPlan& plan) {
    const RunSettings& o = plan.settings;
    const std::string& output_dir = o.checkpoints.output_dir;
    if (output_dir.empty() || !plan.setup.training || plan.setup.sharding.rank != 0) return "";
    std::filesystem::path folder = std::filesystem::absolute(output_dir);
    std::error_code fault;
    while (!std::filesystem::exists(folder, fault) && folder.has_relative_path()) folder = folder.parent_path();
    const auto room = std::filesystem::space(folder, fault);
    if (fault) return "";
    double bytes = 0;  // of one checkpoint
    for (Sharding sharding = plan.setup.sharding; sharding.rank < sharding.ranks; ++sharding.rank)
        bytes += double(CheckpointWriter::copy_bytes(plan.table, sharding, plan.optimizer));
    if (plan.world) {  // other workers have all but the model and u
        const OuterSettings& outer = plan.optimizer.outer;
        bytes += (outer.workers - 1) * (bytes - (outer.momentum > 0 ? 8.0 : 4.0) * double(plan.table.elements()));
    }
    const std::int64_t every = o.checkpoints.every, steps = plan.steps.total.value_or(0) - plan.first_step,
                       saved = every > 0 && steps > 0 ? (steps - 1) / every + 1 : 1,
                       kept = o.checkpoints.keep > 0 ? std::min(saved, o.checkpoints.keep + 1) : saved;
    if (bytes * double(kept) <= double(room.available)) return "";
    return "the disk of --output-dir has " + mebibytes(room.available) + ", and a checkpoint takes " +
           mebibytes(std::size_t(bytes)) +
           (bytes > double(room.available)
                ? ": the model cannot be saved; choose another --output-dir"
                : "; " + std::to_string(kept) + " of them are there at once: " +
                      (o.checkpoints.keep > 0 ? "decrease" : "set") + " --keep-checkpoints, or use another disk");
}

// "" unless the run reads its text more often than helps, and no validation ends it.
std::string note_on_passes(const RunPlan& plan, const RunData& data) {
    constexpr double kMany = 20;  // the validation loss of a small model rose from there on
    if (!plan.setup.training || !plan.steps.total || !data.batches.loader || data.files.train->is_weighted() ||
        plan.settings.data.overfit_batch || plan.settings.validation.stop_after > 0)
        return "";
    const double passes = double(plan.steps.positions_left(0)) / double(data.batches.loader->targets());
    if (passes <= kMany) return "";
    return format("the run makes %.3g passes over its ", passes) +
           with_commas(data.batches.loader->targets(), "token") +
           ", which it may learn by heart: use more text, or fewer steps; or validate on text that is held out (-j), "
           "with --stop-after 5";
}

// "" if no validation shard is a training shard, too.
std::string note_on_seen_shards(const RunFiles& data) {
    if (!data.train || !data.val) return "";
    const auto shards = std::span(data.val_facts).subspan(1, std::size_t(data.val->size()));
    const auto seen = std::ranges::count_if(shards, [&](const Fact& shard) {
        return std::ranges::find(data.train_facts, shard.value, &Fact::value) != data.train_facts.end();
    });
    if (seen == 0) return "";
    return "validation shards that are training shards, too: " + std::to_string(seen) + " of " +
           std::to_string(data.val->size()) + ", so their loss is that of data seen in training";
}

// "" unless the cool-down of wsd has no step.
std::string note_on_cooldown(const RunPlan& plan) {
    const Schedule& schedule = plan.schedule;
    const std::int64_t total = plan.steps.total.value_or(0);
    if (!plan.setup.training || total == 0 || schedule.kind != LrSchedule::wsd || schedule.cooldown == 0) return "";
    const double last = plan.steps.at(total).begins, all = *schedule.total_steps;
    if (last > std::max(all - schedule.cooldown * all, schedule.warmup_steps)) return "";
    return "there is no cool-down: --cooldown-fraction " + text_of_number(schedule.cooldown) + " of " +
           counted(total, "step") + ", after the warm-up, is at most one step, and the final learning rate is that of "
           "the step after the last one";
}

// "" if documents are masked as intended.
std::string note_on_documents(const RunPlan& plan, const RunData& data) {
    if (!plan.documents) return "";
    const auto& [tokens, rows, ends, parts, longest, pairs, all_pairs] = *plan.documents;
    const ShardSet& shards = data.files.train ? *data.files.train : *data.files.val;
    const std::string& shard = shards[0].path();
    const std::int64_t seq_len = plan.settings.batch.seq_len;
    if (ends == 0)
        return "--document-mask has no effect on " + shard + ": its first " + counted(tokens, "token") +
               " have no end of text, " + std::to_string(*plan.setup.end_of_text);
    if (longest >= seq_len || !plan.setup.training || shards.size() > 1) return "";  // others may have longer ones
    return "no document of " + shard + " reaches the positions from " + std::to_string(longest) + " to " +
           std::to_string(seq_len - 1) + ", which are not trained";
}

}  // namespace

std::vector<std::string> startup_notes(const RunPlan& plan, const RunData& data, const StartingPoint& start,
                                       Context& context) {
    const RunSettings& options = plan.settings;
    std::vector<std::string> notes;
    const std::string& why_not_cudnn = attention_plan(plan.setup, context).why_not_cudnn;
    if (!why_not_cudnn.empty()) notes.push_back("attention does not use cuDNN: " + why_not_cudnn);
    notes.insert(notes.end(), start.notes.begin(), start.notes.end());
    if (!plan.tokenizer_note.empty()) notes.push_back(plan.tokenizer_note);
    for (const auto& [shards, patterns] :
         {std::pair(data.files.train.get(), options.data.train), {data.files.val.get(), options.data.val}})
        if (!shards && !patterns.empty())
            notes.push_back("no shard matches " + in_quotes(ShardSet::unmatched(patterns)) +
                            ": the plan is for a vocabulary of " + std::to_string(plan.setup.config.vocabulary));
    if (options.data.train.empty() && plan.setup.training)
        notes.push_back("no --train-data: the plan is for a vocabulary of " +
                        std::to_string(plan.setup.config.vocabulary));
    if (const std::string& why = data.batches.too_small; !why.empty())
        notes.push_back("the plan leaves out --train-data, which is too small for it: " + why);
    for (const std::string& note : {note_on_passes(plan, data), note_on_disk(plan), note_on_documents(plan, data)})
        if (!note.empty()) notes.push_back(note);
    const int threads = context.device.threads * plan.ranks_here, quota = device::cpu_quota().threads(),
              cores = plan.ranks_here == 1 ? device::usable_threads()  // several are bound to parts of all cores
                                           : std::min(int(sysconf(_SC_NPROCESSORS_ONLN)), quota);
    if (threads > cores && !options.dry_run.elsewhere())
        notes.push_back(counted(threads, "thread") + " on " + counted(cores, "core") + ": more are slower");
    if (plan.setup.dtype == kernels::DType::bf16 && device::memory_is_host_memory() &&
        context.matmul.describe(plan.setup.dtype).find("widened to fp32") != std::string::npos)
        notes.push_back("this processor computes products of bf16 as fp32: --dtype fp32 is faster here");
    if (const std::string seen = note_on_seen_shards(data.files); !seen.empty()) notes.push_back(seen);
    if (plan.setup.training && plan.schedule.peak == 0)
        notes.push_back("--lr is 0: no step changes the weights");
    if (options.length.minutes > 0 && options.length.epochs > 0 && !options.length.has_steps())
        notes.push_back("the learning rate follows --epochs " + std::to_string(options.length.epochs) +
                        ": if --max-minutes " +
                        text_of_number(options.length.minutes) + " ends the run earlier, it does not decay to its end");
    const OptimizerKind& optimizer = *plan.optimizer.kind;
    if (*optimizer.on_other_model && start.checkpoint && plan.first_step == 0 &&
        (!start.run || start.run->optimizer.kind != &optimizer))
        notes.push_back(optimizer.on_other_model);
    const bool masks = options.data.document_mask;
    if (start.checkpoint && plan.first_step == 0 && start.run && start.run->data.document_mask != masks)
        notes.push_back(std::string("the model of --init was trained with") + (masks ? "out" : "") +
                        " --document-mask: losses with and without it are not comparable");
    if (const std::string note = note_on_cooldown(plan); !note.empty()) notes.push_back(note);
    const bool out_of_time =
        plan.settings.length.is_timed() && plan.seconds_before.used >= options.length.minutes * 60;
    if (out_of_time || plan.is_complete()) {
        std::vector<std::string> ways = ways_to_train_further(plan, plan.first_step,
                                                              plan.seconds_before, plan.tasks_before);
        ways[0] = "the checkpoint has " +
                  (out_of_time ? "used all of --max-minutes " + text_of_number(options.length.minutes)
                               : "completed all " + counted(plan.first_step, "step")) + "; " + ways[0];
        notes.insert(notes.end(), ways.begin(), ways.end());
    }
    if (const std::string note = optimizer.report(plan.optimizer_run()).note; !note.empty()) notes.push_back(note);
    return notes;
}

}  // namespace llmc
