// noise_scale.cpp - signal and noise from two norms, their running averages, and the norms of a step
#include "llmc/run/log/noise_scale.h"

#include <cmath>
#include <limits>

#include "kernels/base/error.h"
#include "llmc/base/number_text.h"

namespace llmc {
namespace {

constexpr std::int64_t kWarmMeasurements = 20;
constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

}  // namespace

NoiseMeasurement measure_noise(const SmallBatchNorms& small, double norm, std::int64_t tokens) {
    require(small.batches > 0 && small.tokens < tokens * small.batches, "small batches of the noise scale",
            small.batches, "some that are smaller than the step's whole batch");
    const double small_norm = small.norms / double(small.tokens), b = double(small.tokens) / double(small.batches),
                 B = double(tokens);
    return {(B * norm - b * small_norm) / (B - b), (small_norm - norm) / (1 / b - 1 / B)};
}

NoiseScale::NoiseScale(double beta, const NoiseAverages& averages) : beta_(beta), averages_(averages) {
    require(beta >= 0 && beta < 1, "beta of the noise scale", beta, "at least 0 and below 1");
}

void NoiseScale::add(const NoiseMeasurement& measurement) {
    const auto [signal, noise] = measurement;
    if (!std::isfinite(signal) || !std::isfinite(noise)) return;
    const auto average = [&](double& value, double x) { value = beta_ * value + (1 - beta_) * x; };
    average(averages_.signal, signal);
    average(averages_.noise, noise);
    average(averages_.signal_squared, signal * signal);
    average(averages_.noise_squared, noise * noise);
    average(averages_.product, signal * noise);
    ++averages_.count;
}

NoiseScale::Estimate NoiseScale::estimate() const {
    if (averages_.count == 0) return {State::invalid, kUnknown, kUnknown, kUnknown, kUnknown, kUnknown};
    const double faded = std::pow(beta_, double(averages_.count)), weight = 1 - faded;
    Estimate estimate{State::invalid, averages_.signal / weight, averages_.noise / weight,
                      kUnknown, kUnknown, kUnknown};
    if (!(estimate.signal > 0 && estimate.noise > 0)) return estimate;
    estimate.scale = estimate.noise / estimate.signal;

    // The sum of the squared weights of the measurements: 1 / (effective number of independent measurements). A single
    // measurement has no deviation.
    const double share = (1 - beta_) / (1 + beta_) * (1 + faded) / weight, factor = share / (1 - share);
    double signal_deviation = kUnknown;
    if (averages_.count > 1 && beta_ > 0) {
        const auto variance = [&](double squares, double a, double b) { return (squares / weight - a * b) * factor; };
        const double signal = variance(averages_.signal_squared, estimate.signal, estimate.signal);
        const double noise = variance(averages_.noise_squared, estimate.noise, estimate.noise);
        const double both = variance(averages_.product, estimate.signal, estimate.noise);
        const double relative = noise / (estimate.noise * estimate.noise) +
                                signal / (estimate.signal * estimate.signal) -
                                2 * both / (estimate.noise * estimate.signal);
        signal_deviation = std::sqrt(std::fmax(signal, 0));  // rounding may leave a variance of 0 negative
        estimate.relative_deviation = std::sqrt(std::fmax(relative, 0));
        estimate.at_least = estimate.noise / (estimate.signal + 2 * signal_deviation);
    }
    estimate.state = averages_.count < kWarmMeasurements    ? State::warming
                   : estimate.signal > 2 * signal_deviation ? State::ok
                                                          : State::weak;
    return estimate;
}

const char* name_of(NoiseScale::State state) {
    switch (state) {
        case NoiseScale::State::warming: return "warming";
        case NoiseScale::State::ok: return "ok";
        case NoiseScale::State::weak: return "weak";
        case NoiseScale::State::invalid: break;
    }
    return "invalid";
}

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
