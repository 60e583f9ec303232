// step_noise.cpp - from the norms of a step to measurements of the noise scale
#include "llmc/run/log/step_noise.h"

#include <cmath>

#include "kernels/base/error.h"
#include "llmc/base/number_text.h"

namespace llmc {

void add_options(OptionList& list, NoiseSettings& s) {
    list.group("Noise scale");
    list.entry("noise-scale", s.estimator,
        "estimate the gradient noise scale by comparing gradients of ranks (rank) or of micro-batches (micro) with "
        "those of the whole batch",
        kNoiseEstimators);
    list.entry("noise-scale-beta", s.beta, "decay rate of the moving averages of --noise-scale",
        Real{0, 0.9999999});
}

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

void StepNoise::restore(const NoiseAverages& averages, double relative) {
    noise_ = NoiseScale(std::pow(beta_, relative), averages);
}

void StepNoise::add(const kernels::RankSums& totals, std::int64_t positions) {
    const auto tokens = std::int64_t(totals.valid_targets);
    const double weight = double(positions);  // sum of gradients = accumulated gradient times this
    const SmallBatchNorms small{.norms = totals.small_norms * weight * weight,
                                .tokens = std::int64_t(totals.small_tokens),
                                .batches = std::int64_t(totals.small_batches)};
    if (small.batches == 0 || (small.batches == 1 && small.tokens == tokens)) return;
    const double scale = weight / double(tokens);
    noise_.add(measure_noise(small, totals.norm * scale * scale, tokens));
}

}  // namespace llmc
