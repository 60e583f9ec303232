// noise_scale.cpp - signal and noise from two norms, and their running averages
#include "llmc/run/log/noise_scale.h"

#include <cmath>
#include <limits>

#include "kernels/base/error.h"

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

}  // namespace llmc
