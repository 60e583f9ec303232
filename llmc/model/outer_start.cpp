// outer_start.cpp - what the program knows of outer steps before the first one: flags, checks, costs and a report
#include "llmc/model/outer_steps.h"

#include <algorithm>

#include "kernels/base/error.h"
#include "kernels/base/integers.h"
#include "llmc/base/number_text.h"
#include "llmc/base/value_text.h"
#include "llmc/model/onebit_adam.h"
#include "llmc/model/onebit_mean.h"

namespace llmc {

OnebitMeanSettings outer_mean(const OuterSettings& outer) {
    return {.scale = OnebitScale::tensor, .bits = int(outer.bits), .errors = outer.errors || outer.bits == 1,
            .error_decay = float(outer.error_decay)};
}

OptimizerReport measure_outer_steps(const OptimizerRun& run, Context& context) {
    const OuterSettings& outer = run.settings.outer;
    if (outer.every == 0 || outer.bits > 1) return {};
    return report_compression("outer steps: ", outer.every == 1 ? "step" : "round",
                              run.table.elements() / run.sharding.ranks, int(outer.workers),
                              double(outer.every) * (run.reduce_in_bf16 ? 2 : 4), context);
}

double outer_bytes_sent(const OuterSettings& settings, const ParameterTable& table, Sharding sharding) {
    double bytes = 4 * double(table.elements());
    if (settings.bits < 32) {
        bytes = 0;
        for (sharding.rank = 0; sharding.rank < sharding.ranks; ++sharding.rank)
            bytes += double(OnebitMean::bytes(table, int(settings.workers), 1, outer_mean(settings), sharding)
                                .messages);
    }
    return 2 * double(settings.workers - 1) / double(settings.workers) * bytes;
}

std::vector<OptimizerBytes> outer_bytes(const OuterSettings& settings, const ParameterTable& table,
                                        const Sharding& sharding) {
    if (settings.every == 0) return {};
    const std::size_t bytes = std::size_t(GradientBuckets(table, sharding).owned_elements()) * sizeof(float);
    // Within a round a rank copies its weights.
    std::vector<OptimizerBytes> all{{"outer steps: anchor, fp32", bytes, bytes}};
    if (settings.momentum > 0) all.push_back({"outer steps: momentum, fp32", bytes, bytes});
    if (settings.bits < 32) {
        const auto mean = OnebitMean::bytes(table, int(settings.workers), 1, outer_mean(settings), sharding);
        all.push_back({"outer steps: exchange", mean.device + mean.lists, mean.errors});
    }
    return all;
}

void add_outer_options(OptionList& list, OuterSettings& s) {
    list.group("Data parallelism");
    list.entry("outer-steps", s.every,
        "each worker makes this many local steps, then an outer step synchronizes their weights (DiLoCo); 0: all "
        "ranks sum their gradients in every step",
        Whole{0, kMany});
    list.need({"outer-steps", "above 0"});
    list.entry("outer-workers", s.workers,
        "number of workers, such as that of the nodes; each has as many consecutive ranks, which sum their "
        "gradients and need -z 1 or 2; auto: every rank is a worker",
        Whole{0, kMany, true});
    list.entry("outer-lr", s.learning_rate, "learning rate of outer steps; auto: 0.7, or 1 with --outer-steps 1",
        Real{1e-6, 2, true});
    list.entry("outer-momentum", s.momentum, "Nesterov momentum of outer steps; auto: 0.6, or 0 with --outer-steps 1",
        Real{0, 0.9999999, true});
    list.entry("outer-bits", s.bits,
        "bits per element of what workers send in an outer step: 32; 4, 15 levels of the changes; 1, their signs, "
        "for --outer-steps 1", Whole{0, 64});
    list.entry("outer-errors", s.errors,
        "carry what 4 bits lose over to the next outer step, which takes 4 bytes per parameter; 1 bit always does");
    list.entry("outer-error-decay", s.error_decay, "factor on what is carried over, per outer step", Real{0, 1});
    list.entry("outer-start-step", s.start_step,
        "number of data-parallel steps before the first local one; without effect in a run that has made local steps",
        Whole{0, kMany});
    list.need();
    list.check([&s] {
        if (s.every == 0) return;
        require(s.bits == 32 || s.bits == 4 || s.bits == 1, "--outer-bits", s.bits, "32, 4 or 1");
        require(!s.errors || s.bits == 4, "--outer-errors", "set with --outer-bits " + std::to_string(s.bits),
                "--outer-bits 4: 32 bits lose nothing, and 1 bit always carries errors over",
                "use --outer-errors=off");
        require(s.errors || s.bits == 1 || s.error_decay == OuterSettings().error_decay, "--outer-error-decay",
                "set without errors that are carried over", "--outer-errors, or --outer-bits 1",
                "set one of them, or --outer-error-decay " + text_of_number(OuterSettings().error_decay));
    });
}

int ranks_of_worker(const OuterSettings& s, int ranks) {
    if (s.every == 0) return ranks;
    if (s.workers == 0) return 1;
    require(ranks % s.workers == 0, "--outer-workers", s.workers, "a number that divides the " + counted(ranks, "rank"),
            "use --outer-workers auto -z 0 for workers of one rank each");
    return int(ranks / s.workers);
}

void resolve_auto(OuterSettings& s, int workers, std::int64_t seq_len) {
    s.workers = workers;
    s.seq_len = seq_len;
    if (std::isnan(s.learning_rate)) s.learning_rate = s.every == 1 ? 1 : 0.7;
    if (std::isnan(s.momentum)) s.momentum = s.every == 1 ? 0 : 0.6;
}

void check_outer_steps(const OuterSettings& s, const Sharding& worker) {
    const bool several = worker.ranks > 1;
    require((worker.stage > 0) == several, "--zero-stage", worker.stage,
            several ? "1 or 2 with --outer-workers: the ranks of a worker divide the optimizer's state"
                    : "0 with --outer-steps: each rank is a worker of its own, which has nothing to shard",
            several         ? "use -z 1"
            : s.workers > 1 ? "use -z 0, or set --outer-workers to a smaller divisor of the number of ranks"
                            : "use -z 0");
    require(s.bits == 32 || s.workers > 1, "--outer-bits", s.bits, "32 with one worker, which sends nothing",
            "use --outer-bits 32, or more workers");
    require(!s.last_step || s.start_step < *s.last_step, "--outer-start-step", s.start_step,
            "less than the " + counted(s.last_step.value_or(0), "step") + " of the run");
}

OptimizerReport report_outer_steps(const OptimizerRun& run) {
    const OuterSettings& outer = run.settings.outer;
    if (outer.every == 0) return {};
    const std::int64_t each = run.sharding.ranks, workers = outer.workers, ranks = workers * each;
    const double round = outer_bytes_sent(outer, run.table, run.sharding) / 1e6,
                 reduced = run.reduce_in_bf16 ? 2 : 4,
                 gathered = run.sharding.stage == 0                 ? reduced
                            : run.dtype == kernels::DType::bf16 ? 2 : 4,
                 full = double(ranks - 1) / double(ranks) * (reduced + gathered) * double(run.table.elements()) / 1e6;
    OptimizerReport report;
    report.lines = "workers: " + (workers == ranks ? counted(ranks, "rank")
                                                   : std::to_string(workers) + ", each of " + counted(each, "rank")) +
                   ", local steps from step " + with_commas(outer.start_step + 1) +
                   " on, with an outer step after every " +
                   (outer.every == 1 ? "step" : counted(outer.every, "step")) +
                   (workers == 1
                        ? ", though one worker sends nothing\n"
                        : format(": a worker sends %.4g MB per round, instead of %.4g per step\n", round, full));
    if (outer.bits == 1 && outer.every > 1)
        report.lines += "  1 bit in rounds of several steps costs more loss than 4; it is for --outer-steps 1\n";
    report.details = format("  outer learning rate %.4g, momentum %.4g\n", outer.learning_rate, outer.momentum);
    const std::int64_t steps = run.total_steps.value_or(0), local = std::max<std::int64_t>(steps - outer.start_step, 0);
    const double all = double(steps - local) * full + double(ceil_div(local, outer.every)) * round;
    if (workers > 1)
        for (const double gigabits : {0.1, 1.0, 10.0})
            report.details += format("  a link of %g Gbit/s needs ", gigabits) + time_text(8e-3 * round / gigabits) +
                              " for the bytes of an outer step, " +
                              time_text(8e-3 * double(outer.every) * full / gigabits) + " for those of " +
                              counted(outer.every, "data-parallel step") + ";\n    " +
                              time_text(8e-3 * all / gigabits) + " for those of the run, " +
                              time_text(8e-3 * double(steps) * full / gigabits) + " without outer steps\n";
    return report;
}

OuterSettings outer_settings_in(const JsonValue& options, const std::string& file) {
    OuterSettings settings;
    OptionList list;
    add_outer_options(list, settings);
    for (const Option& option : list.options) option.take(*options, file);
    return settings;
}

}  // namespace llmc
