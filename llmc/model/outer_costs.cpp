// outer_costs.cpp - what outer steps cost: memory, bytes sent, the time of compression
#include "llmc/model/onebit_adam.h"
#include "llmc/model/onebit_mean.h"
#include "llmc/model/outer_steps.h"

namespace llmc {

OnebitMeanSettings outer_mean(const OuterSettings& outer) {
    return {.scale = OnebitScale::tensor, .bits = outer.bits, .errors = outer.errors || outer.bits == 1,
            .error_decay = outer.error_decay};
}

OptimizerReport measure_outer_steps(const OptimizerRun& run, Context& context) {
    const OuterSettings& outer = run.settings.outer;
    if (outer.every == 0 || outer.bits > 1) return {};
    return report_compression("outer steps: ", outer.every == 1 ? "step" : "round",
                              run.table.elements() / run.sharding.ranks, outer.workers,
                              double(outer.every) * (run.reduce_in_bf16 ? 2 : 4), context);
}

double outer_bytes_sent(const OuterSettings& settings, const ParameterTable& table, Sharding sharding) {
    double bytes = 4 * double(table.elements());
    if (settings.bits < 32) {
        bytes = 0;
        for (sharding.rank = 0; sharding.rank < sharding.ranks; ++sharding.rank)
            bytes += double(OnebitMean::bytes(table, settings.workers, 1, outer_mean(settings), sharding).messages);
    }
    return 2 * double(settings.workers - 1) / settings.workers * bytes;
}

std::vector<OptimizerBytes> outer_bytes(const OuterSettings& settings, const ParameterTable& table,
                                        const Sharding& sharding) {
    if (settings.every == 0) return {};
    const std::size_t bytes = std::size_t(GradientBuckets(table, sharding).owned_elements()) * sizeof(float);
    // Within a round a rank copies its weights.
    std::vector<OptimizerBytes> all{{"outer steps: anchor, fp32", bytes, bytes}};
    if (settings.momentum > 0) all.push_back({"outer steps: momentum, fp32", bytes, bytes});
    if (settings.bits < 32) {
        const auto mean = OnebitMean::bytes(table, settings.workers, 1, outer_mean(settings), sharding);
        all.push_back({"outer steps: exchange", mean.device + mean.lists, mean.errors});
    }
    return all;
}

}  // namespace llmc
