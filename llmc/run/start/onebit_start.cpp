// onebit_start.cpp - texts and numbers of onebit_start.h
#include "llmc/run/start/onebit_start.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "kernels/base/error.h"
#include "llmc/base/number_text.h"
#include "llmc/model/onebit_adam.h"
#include "llmc/model/onebit_speed.h"

namespace llmc {
namespace {

constexpr const char* kExchange = "1-bit exchange: ";

// The smallest number of updates before the freeze.
std::int64_t earliest_freeze(const OnebitSettings& onebit) {
    if (onebit.freeze_after > 0) return onebit.freeze_after;
    const std::int64_t every = onebit.settling_updates;  // the first check has nothing to compare with
    return std::max(2 * every, (onebit.lr_warmup_steps / every + 1) * every);
}

// Empty: the run will compress.
std::string why_not_compressed(const RunPlan& plan, int ranks) {
    const OnebitSettings& onebit = *plan.optimizer.onebit;
    if (onebit.frozen_only) return "--onebit-bits 32 compresses nothing, also after the freeze";
    if (ranks == 1) return "one rank has nothing to send";
    if (ranks == onebit.ranks_per_node) return "all ranks are on one machine (--onebit-hierarchical)";
    if (plan.frozen_after > 0 || !plan.steps.total || earliest_freeze(onebit) < *plan.steps.total) return "";
    const std::string ends = "the run ends after " + counted(*plan.steps.total, "step") + ", ";
    if (onebit.freeze_after > 0)
        return ends + "before " + counted(onebit.freeze_after, "update") + " (--onebit-freeze-step)";
    return ends + "and --onebit-freeze-step auto freezes after " + counted(earliest_freeze(onebit), "update") +
           " at the earliest; set it to 15 to 25 % of the steps";
}

std::string megabytes(double bytes) { return format("%.3g MB", bytes / 1e6); }

std::string excluded_text(const RunPlan& plan) {
    const OnebitSettings& onebit = *plan.optimizer.onebit;
    if (onebit.exclude.empty()) return "";
    const std::vector<bool> left_out = tensors_left_out(plan.table, onebit.exclude);
    std::int64_t tensors = 0, parameters = 0;
    std::string names;
    for (std::size_t i = 0; i < left_out.size(); ++i) {
        if (!left_out[i]) continue;
        const ParameterSpec& spec = plan.table.tensors()[i];
        if (tensors < 3) names += (tensors > 0 ? ", " : "") + spec.name;
        ++tensors;
        parameters += spec.size();
    }
    return std::string(kExchange) + "--onebit-exclude matches " + std::to_string(tensors) + " of " +
           counted(std::int64_t(left_out.size()), "tensor") + ", " + std::to_string(parameters) +
           " parameters, whose gradients stay uncompressed: " + names + (tensors > 3 ? ", ..." : "") + '\n';
}

}  // namespace

OnebitSettings onebit_settings(const Options& o, std::int64_t warmup_steps, std::span<const int> nodes) {
    OnebitSettings onebit{
        .freeze_after = freeze_after(o), .lr_warmup_steps = warmup_steps,
        .scale = o.onebit_scale, .space = o.onebit_space, .exclude = o.onebit_exclude,
        .frozen_only = o.onebit_bits == 32};
    if (o.onebit_hierarchical) onebit.ranks_per_node = ranks_per_node(nodes);
    return onebit;
}

std::int64_t onebit_frozen_after(const Resumption& resumption) {
    const OptimizerCounts& counts = resumption.state.optimizer;
    return onebit_counts(counts.own, counts.updates, (resumption.folder / "trainer_state.json").string()).frozen_after;
}

void check_onebit_resumption(const RunPlan& plan, const Options& options, const Resumption& resumption) {
    if (!plan.optimizer.onebit) return;
    const std::int64_t freeze_after = plan.optimizer.onebit->freeze_after, frozen_after = plan.frozen_after,
                       updates = resumption.state.optimizer.updates;
    if (frozen_after == 0)
        return require(freeze_after == 0 || freeze_after > updates, "--onebit-freeze-step", freeze_after,
                       "more than the " + counted(updates, "update") + " of the checkpoint, which is not frozen yet");
    const nlohmann::json &before = *resumption.state.run.options, &now = *plan.identity.options;
    const auto same = [&](const char* name, const char* absent) {
        return before.value(name, absent) == now.value(name, absent);
    };
    require(same("onebit-freeze-step", "auto") || options.onebit_freeze_step == std::to_string(frozen_after),
            "--onebit-freeze-step", in_quotes(options.onebit_freeze_step),
            in_quotes(before.value("onebit-freeze-step", "auto")) + ", because the second moment was frozen after " +
                counted(frozen_after, "update"),
            "use that");
    require(same("onebit-exclude", ""), "--onebit-exclude", in_quotes(options.onebit_exclude),
            in_quotes(before.value("onebit-exclude", "")) +
                ", as in the checkpoint, because the second moments are frozen",
            "use that value");
}

std::string note_on_onebit_freeze(const RunPlan& plan) {
    const auto& onebit = plan.optimizer.onebit;
    if (!onebit || plan.frozen_after > 0 || onebit->freeze_after == 0 ||
        onebit->freeze_after > onebit->lr_warmup_steps)
        return "";
    return "--onebit-freeze-step " + std::to_string(onebit->freeze_after) +
           " is within the learning-rate warm-up, where second moments are larger than later, so that all updates "
           "after the freeze would be too small: use more than " + std::to_string(2 * onebit->lr_warmup_steps);
}

StartupItem onebit_exchange_item(const RunPlan& plan) {
    if (!plan.optimizer.onebit) return {};
    const OnebitSettings& onebit = *plan.optimizer.onebit;
    const int ranks = plan.setup.sharding.ranks;
    if (const std::string why = why_not_compressed(plan, ranks); !why.empty())
        return StartupItem(kExchange + ("none, because " + why) + '\n');
    const int workers = ranks / onebit.ranks_per_node;
    const auto sent = [&](double elements, int among, double bits) {
        return 2.0 * (among - 1) / among * elements * bits / 8;
    };
    const auto elements = double(plan.table.elements());
    const double bits = sent(elements / onebit.ranks_per_node, workers, 1),
                 full = sent(elements, ranks, plan.reduce_in_bf16 ? 16 : 32);
    const std::string beside =
        plan.ranks_here > 1 && onebit.ranks_per_node == 1
            ? std::string(kExchange) + counted(plan.ranks_here, "rank") +
                  " are on this machine, between which compression seldom pays" +
                  (plan.ranks_here < ranks ? "; see --onebit-hierarchical\n" : "\n")
            : "";
    const std::string since =
        plan.frozen_after > 0
            ? "resumed: the second moment was frozen after " + counted(plan.frozen_after, "update") + "; "
        : onebit.freeze_after > 0 ? "after " + counted(onebit.freeze_after, "update") + ' '
                                  : "once the second moment has settled ";
    return StartupItem(kExchange + since + "a rank sends " + megabytes(bits) + " of momentum per step" +
                       (onebit.ranks_per_node > 1 ? " to other machines" : "") + "; AdamW's gradients would be " +
                       megabytes(full) + '\n' + beside + excluded_text(plan));
}

StartupItem onebit_compression_item(const RunPlan& plan, Context& context) {
    const int ranks = context.communicator->size();
    const auto& onebit = plan.optimizer.onebit;
    if (!onebit || !why_not_compressed(plan, ranks).empty()) return {};
    const int workers = ranks / onebit->ranks_per_node;
    const std::int64_t elements = plan.table.elements() / onebit->ranks_per_node;
    const double seconds = measure_compression(elements, workers, context);
    const double gigabits = break_even_bits_a_second(elements, workers, plan.reduce_in_bf16 ? 2 : 4, seconds) / 1e9;
    if (seconds == 0)
        return {std::string(kExchange) + "on this machine compression adds no computation time to a step of AdamW\n",
                {{"compression_ms", 0}, {"compression_pays_below_gbit_s", nullptr}}};
    return {format("%son this machine compression adds %.3g ms of computation to a step of AdamW; a compressed step is "
                   "faster if a rank's share of its machine's link is below %.3g Gbit/s\n",
                   kExchange, seconds * 1e3, gigabits),
            {{"compression_ms", seconds * 1e3}, {"compression_pays_below_gbit_s", gigabits}}};
}

}  // namespace llmc
