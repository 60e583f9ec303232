// onebit_start.cpp - what the program knows of 1-bit Adam: flags, checks of a resumed run, a note and its report
#include <algorithm>
#include <nlohmann/json.hpp>

#include "kernels/base/error.h"
#include "llmc/base/number_text.h"
#include "llmc/base/option.h"
#include "llmc/base/value_text.h"
#include "llmc/model/onebit_adam.h"

namespace llmc {
namespace {

constexpr const char* kExchange = "1-bit exchange: ";

struct OnebitFlags {
    std::string freeze_step = "auto";  // auto, or a number
    std::int64_t bits = 1;             // 1, or 32: frozen but not compressed
    bool hierarchical = false;         // compress between machines only
    OnebitSettings settings{};         // of which the other flags are members
};

void onebit_flags(OptionList& list, std::any& own) {
    auto& onebit = std::any_cast<OnebitFlags&>(own);
    list.group("1-bit Adam");
    list.entry("onebit-freeze-step", onebit.freeze_step,
               "number of updates before the second moment is frozen, 15 to 25 % of a run; auto: after the "
               "learning-rate warm-up, once the second moment no longer changes (checked every 500 updates)");
    list.entry("onebit-scale", onebit.settings.scale, "elements that share one scale; a block has 4096 elements",
               kOnebitScales);
    list.entry("onebit-space", onebit.settings.space,
               "value that is compressed; update: the momentum divided by the square root of the second moment, whose "
               "elements have similar magnitudes",
               kOnebitSpaces);
    list.entry("onebit-exclude", onebit.settings.exclude,
               "extended regular expression: tensors whose names contain a match stay with AdamW, with uncompressed "
               "gradients");
    list.entry("onebit-bits", onebit.bits,
               "bits per element, 1 or 32; 32: freeze the second moment but do not compress, to separate the effect of "
               "the freeze from that of compression",
               Whole{1, 32});
    list.entry("onebit-hierarchical", onebit.hierarchical,
               "compress between machines only: the ranks of one machine reduce gradients uncompressed; every machine "
               "needs the same number of ranks; one machine alone compresses nothing");
}

std::any onebit_settings(const std::any& own, const OptimizerFlags& of_run) {
    const auto& flags = std::any_cast<const OnebitFlags&>(own);
    OnebitSettings onebit = flags.settings;
    onebit.freeze_after = number_or_auto<std::int64_t>("--onebit-freeze-step", flags.freeze_step, 0, 1, kMany);
    onebit.lr_warmup_steps = of_run.warmup_steps;
    onebit.frozen_only = flags.bits == 32;
    if (flags.hierarchical && !of_run.nodes.empty()) onebit.ranks_per_node = ranks_per_node(of_run.nodes);
    require(onebit.freeze_after > 0 || !of_run.is_timed || of_run.warmup_steps > 0, "--onebit-freeze-step",
            in_quotes(flags.freeze_step) + " with --max-minutes as the length of the run",
            "a number of updates, or --warmup-steps, because auto freezes after the warm-up");
    require(flags.bits == 1 || flags.bits == 32, "--onebit-bits", flags.bits, "1 or 32");
    require(of_run.zero_stage == 0, "--zero-stage",
            std::to_string(of_run.zero_stage) + " with --optimizer onebit-adam", "0",
            "1-bit Adam needs the whole momentum on every rank, so the optimizer state cannot be sharded");
    return onebit;
}

// Updates after which the run that is resumed froze; 0: not yet. Throws Error for counts in `file` that it cannot have.
std::int64_t frozen_after(const OptimizerRun& run, const std::string& file = "") {
    return onebit_counts(run.before.own, run.before.updates, file).frozen_after;
}

// The smallest number of updates before the freeze.
std::int64_t earliest_freeze(const OnebitSettings& onebit) {
    if (onebit.freeze_after > 0) return onebit.freeze_after;
    const std::int64_t every = onebit.settling_updates;  // the first check has nothing to compare with
    return std::max(2 * every, (onebit.lr_warmup_steps / every + 1) * every);
}

// Empty: the run will compress.
std::string why_not_compressed(const OptimizerRun& run) {
    const OnebitSettings& onebit = onebit_of(run.settings);
    if (onebit.frozen_only) return "--onebit-bits 32 compresses nothing, also after the freeze";
    if (run.sharding.ranks == 1) return "one rank has nothing to send";
    if (run.sharding.ranks == onebit.ranks_per_node) return "all ranks are on one machine (--onebit-hierarchical)";
    if (frozen_after(run) > 0 || !run.total_steps || earliest_freeze(onebit) < *run.total_steps) return "";
    const std::string ends = "the run ends after " + counted(*run.total_steps, "step") + ", ";
    if (onebit.freeze_after > 0)
        return ends + "before " + counted(onebit.freeze_after, "update") + " (--onebit-freeze-step)";
    return ends + "and --onebit-freeze-step auto freezes after " + counted(earliest_freeze(onebit), "update") +
           " at the earliest; set it to 15 to 25 % of the steps";
}

std::string megabytes(double bytes) { return format("%.3g MB", bytes / 1e6); }

std::string excluded_text(const OptimizerRun& run) {
    const OnebitSettings& onebit = onebit_of(run.settings);
    if (onebit.exclude.empty()) return "";
    const std::vector<bool> left_out = tensors_left_out(run.table, onebit.exclude);
    std::int64_t tensors = 0, parameters = 0;
    std::string names;
    for (std::size_t i = 0; i < left_out.size(); ++i) {
        if (!left_out[i]) continue;
        const ParameterSpec& spec = run.table.tensors()[i];
        if (tensors < 3) names += (tensors > 0 ? ", " : "") + spec.name;
        ++tensors;
        parameters += spec.size();
    }
    return std::string(kExchange) + "--onebit-exclude matches " + std::to_string(tensors) + " of " +
           counted(std::int64_t(left_out.size()), "tensor") + ", " + std::to_string(parameters) +
           " parameters, whose gradients stay uncompressed: " + names + (tensors > 3 ? ", ..." : "") + '\n';
}

void check_onebit_resumption(const OptimizerRun& run, const std::any& then, const std::any& now,
                             const std::string& file) {
    const std::int64_t freeze_after = onebit_of(run.settings).freeze_after, frozen = frozen_after(run, file),
                       updates = run.before.updates;
    if (frozen == 0)
        return require(freeze_after == 0 || freeze_after > updates, "--onebit-freeze-step", freeze_after,
                       "more than the " + counted(updates, "update") + " of the checkpoint, which is not frozen yet");
    const auto &flags_then = std::any_cast<const OnebitFlags&>(then), &flags = std::any_cast<const OnebitFlags&>(now);
    const std::string &step = flags.freeze_step, &step_then = flags_then.freeze_step,
                      &exclude = flags.settings.exclude, &exclude_then = flags_then.settings.exclude;
    require(step == step_then || step == std::to_string(frozen), "--onebit-freeze-step", in_quotes(step),
            in_quotes(step_then) + ", because the second moment was frozen after " + counted(frozen, "update"),
            "use that");
    require(exclude == exclude_then, "--onebit-exclude", in_quotes(exclude),
            in_quotes(exclude_then) + ", as in the checkpoint, because the second moments are frozen",
            "use that value");
}

// Why nothing will be compressed, or how much a rank sends.
std::string exchange_text(const OptimizerRun& run) {
    const OnebitSettings& onebit = onebit_of(run.settings);
    const int ranks = run.sharding.ranks;
    if (const auto why = why_not_compressed(run); !why.empty()) return kExchange + ("none, because " + why) + '\n';
    const int workers = ranks / onebit.ranks_per_node;
    const auto sent = [&](double elements, int among, double bits) {
        return 2.0 * (among - 1) / among * elements * bits / 8;
    };
    const auto elements = double(run.table.elements());
    const double bits = sent(elements / onebit.ranks_per_node, workers, 1),
                 full = sent(elements, ranks, run.reduce_in_bf16 ? 16 : 32);
    const std::string beside =
        run.ranks_here > 1 && onebit.ranks_per_node == 1
            ? std::string(kExchange) + counted(run.ranks_here, "rank") +
                  " are on this machine, between which compression seldom pays" +
                  (run.ranks_here < ranks ? "; see --onebit-hierarchical\n" : "\n")
            : "";
    const std::int64_t frozen = frozen_after(run);
    const std::string since =
        frozen > 0 ? "resumed: the second moment was frozen after " + counted(frozen, "update") + "; "
        : onebit.freeze_after > 0 ? "after " + counted(onebit.freeze_after, "update") + ' '
                                  : "once the second moment has settled ";
    return kExchange + since + "a rank sends " + megabytes(bits) + " of momentum per step" +
           (onebit.ranks_per_node > 1 ? " to other machines" : "") + "; AdamW's gradients would be " +
           megabytes(full) + '\n' + beside + excluded_text(run);
}

OptimizerReport onebit_report(const OptimizerRun& run) {
    OptimizerReport report{.lines = exchange_text(run)};
    const OnebitSettings& onebit = onebit_of(run.settings);
    if (frozen_after(run) == 0 && onebit.freeze_after > 0 && onebit.freeze_after <= onebit.lr_warmup_steps)
        report.note = "--onebit-freeze-step " + std::to_string(onebit.freeze_after) +
                      " is within the learning-rate warm-up, where second moments are larger than later, so that all "
                      "updates after the freeze would be too small: use more than " +
                      std::to_string(2 * onebit.lr_warmup_steps);
    return report;
}

// The cost of compression, and the link bandwidth below which it is faster; empty if nothing will be compressed.
OptimizerReport measure_onebit(const OptimizerRun& run, Context& context) {
    if (!why_not_compressed(run).empty()) return {};
    const int workers = run.sharding.ranks / onebit_of(run.settings).ranks_per_node;
    const std::int64_t elements = run.table.elements() / onebit_of(run.settings).ranks_per_node;
    return report_compression(kExchange, "step", elements, workers, run.reduce_in_bf16 ? 2 : 4, context);
}

}  // namespace

constinit const OptimizerKind kOnebitAdam{
    .title = "1-bit Adam",
    .help = "is AdamW until its second moment is frozen; then ranks exchange momentum with 1 bit per element instead "
            "of gradients",
    .constant_batch = true,
    .local_gradients = true,
    .own = [] { return std::any(OnebitFlags{}); },
    .flags = onebit_flags,
    .settings = onebit_settings,
    .make = make_onebit_adam,
    .bytes = [](const OptimizerSettings& settings, const ParameterTable& table, const Sharding& sharding,
                kernels::DType dtype) {
        std::vector<OptimizerBytes> all = kAdamW.bytes(settings, table, sharding, dtype);
        all.push_back(onebit_bytes(table, sharding, settings));
        return all;
    },
    .report = onebit_report,
    .measure = measure_onebit,
    .check_resumption = check_onebit_resumption};

}  // namespace llmc
