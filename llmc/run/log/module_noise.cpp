// module_noise.cpp - from the norms of a step to measurements of the noise scale
#include "llmc/run/log/module_noise.h"

#include <cmath>

#include "kernels/base/error.h"
#include "llmc/base/number_text.h"

namespace llmc {

NoiseChoice choose_noise_estimator(NoiseEstimator requested, int stage, int ranks, int micro_batches) {
    const auto counts = counted(ranks, "rank") + " with " + std::to_string(micro_batches) +
                        (micro_batches == 1 ? " micro-batch" : " micro-batches") + " per step";
    const bool has_rank_sums = !Sharding{.stage = stage}.shards_gradients();
    if (requested == NoiseEstimator::off) return {SmallBatches::none, ""};
    if (requested == NoiseEstimator::rank) {
        require(has_rank_sums, "--noise-scale", "rank at --zero-stage 2",
                "auto: with stage 2 no rank has its whole gradient", "use auto");
        require(ranks >= 2, "--noise-scale", "rank with one rank", "at least two ranks",
                "use auto, or start more ranks");
        return {SmallBatches::ranks, ""};
    }
    const bool micro = (has_rank_sums ? 1 : ranks) * micro_batches >= 2;
    if (requested == NoiseEstimator::micro)
        require(micro, "--noise-scale", "micro for " + counts, "at least two micro-batches",
                "increase --total-batch-tokens, or use auto");
    else if (has_rank_sums && ranks >= 2) return {SmallBatches::ranks, ""};
    if (!micro)
        return {SmallBatches::none,
                "noise scale: off, because " + counts + (ranks == 1 ? " has" : " have") + " nothing to compare"};
    return {has_rank_sums ? SmallBatches::first_micro_batches : SmallBatches::micro_batches, ""};
}

const char* name_of(SmallBatches small_batches) {
    return small_batches == SmallBatches::none ? "" : small_batches == SmallBatches::ranks ? "rank" : "micro";
}

ModuleNoise::ModuleNoise(std::vector<std::string> modules, double beta)
    : names_(std::move(modules)), beta_(beta), whole_(beta), modules_(names_.size(), NoiseScale(beta)) {}

std::vector<NoiseAverages> ModuleNoise::averages() const {
    std::vector<NoiseAverages> all{whole_.averages()};
    for (const NoiseScale& module : modules_) all.push_back(module.averages());
    return all;
}

void ModuleNoise::restart(double relative) { restore(std::vector<NoiseAverages>(modules_.size() + 1), relative); }

void ModuleNoise::restore(const std::vector<NoiseAverages>& averages, double relative) {
    require(averages.size() == modules_.size() + 1, "the number of noise averages", averages.size(),
            std::to_string(modules_.size() + 1));
    const double beta = std::pow(beta_, relative);
    whole_ = NoiseScale(beta, averages[0]);
    for (std::size_t i = 0; i < modules_.size(); ++i) modules_[i] = NoiseScale(beta, averages[i + 1]);
}

void ModuleNoise::add(const kernels::ConstRankSums& totals, std::int64_t positions) {
    const auto tokens = std::int64_t(totals.header->valid_targets);
    SmallBatchNorms small{.tokens = std::int64_t(totals.header->small_tokens),
                          .batches = std::int64_t(totals.header->small_batches)};
    if (small.batches == 0 || (small.batches == 1 && small.tokens == tokens)) return;
    const double inverse_weight = double(positions);  // sum of gradients = accumulated gradient times this
    const auto measure = [&](double accumulated_norm, double small_norms) {
        small.norms = small_norms * inverse_weight * inverse_weight;
        const double scale = inverse_weight / double(tokens);
        return measure_noise(small, accumulated_norm * scale * scale, tokens);
    };
    by_module_ = totals.header->sketched == 0;
    double norm = 0, small_norms = 0;
    for (std::size_t module = 0; module < names_.size(); ++module) {
        const double of_module = totals.norms[module], small_of_module = totals.small_norms[module];
        if (by_module_) modules_[module].add(measure(of_module, small_of_module));
        norm += of_module;
        small_norms += small_of_module;
    }
    whole_.add(measure(norm, small_norms));
}

}  // namespace llmc
