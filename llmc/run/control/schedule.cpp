// schedule.cpp - the learning rate of a step
#include "llmc/run/control/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace llmc {
namespace {

constexpr double kWarmupShare = 0.05;  // of the time

// The position of `at` between `first` (0) and `last` (1). If there is nothing between them, all later ones are at 1.
double position(double at, double first, double last) {
    return last > first ? std::clamp((at - first) / (last - first), 0.0, 1.0) : at > first ? 1.0 : 0.0;
}

}  // namespace

double Schedule::after_warmup(double at, double first, double last) const {
    const double low = peak * final_fraction;
    switch (kind) {
        case LrSchedule::constant: return peak;
        case LrSchedule::linear: return peak + position(at, first, last) * (low - peak);
        case LrSchedule::wsd: {
            const double share = position(at, std::max(first, last - cooldown * last), last);
            return peak + (shape == CooldownShape::linear ? share : std::sqrt(share)) * (low - peak);
        }
        case LrSchedule::cosine: break;
    }
    return low + 0.5 * (1 + std::cos(std::numbers::pi * position(at, first, last))) * (peak - low);
}

double Schedule::learning_rate(const StepSize& step, double share) const {
    const double rate = of_progress(step, share);
    return step.relative == 1 ? rate : rate * std::pow(step.relative, batch_exponent);
}

double Schedule::of_progress(const StepSize& step, double share) const {
    const double warmed = step.ends / warmup_steps;
    if (total_steps)
        return step.begins < warmup_steps ? peak * warmed : after_warmup(step.begins, warmup_steps, *total_steps);
    if (warmup_steps > 0) return std::min(warmed, 1.0) * after_warmup(share, 0, 1);
    return share < kWarmupShare ? peak * share / kWarmupShare : after_warmup(share, kWarmupShare, 1);
}

}  // namespace llmc
