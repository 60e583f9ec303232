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

void add_options(OptionList& list, ScheduleSettings& s) {
    const Quantity warmup{"warm-up"};
    list.group("Batch and length");
    list.entry("batch-lr-exponent", s.curve.batch_exponent,
        "scale the learning rate by (tokens of the step / tokens of the first step)^X; 0: do not scale it",
        Real{0, 1});
    list.group("Optimizer");
    list.entry("l,lr", s.curve.peak, "peak learning rate", Real{0, 1e3}, ByRun{});
    list.entry("u,warmup-steps", s.warmup_steps, "steps of linear learning-rate warm-up; 0 in a run whose length is "
        "--max-minutes: 5 % of the time", Whole{0, kMany}, warmup, ByRun{});
    list.entry("warmup-tokens", s.warmup_tokens,
        "instead of --warmup-steps: tokens of the warm-up, rounded up to whole steps (see -d); 0: not set",
        Whole{0, kMany}, warmup);
    list.entry("q,final-lr-fraction", s.curve.final_fraction,
        "final learning rate as a fraction of the peak; in a run of steps that of the step after the last one, as in "
        "llm.c", Real{0, 1}, ByRun{});
    list.entry("k,lr-schedule", s.curve.kind,
        "learning-rate schedule after the warm-up; wsd: constant, then a cool-down at the end of the run",
        kLrSchedules, ByRun{});
    list.need({"lr-schedule", name_of(LrSchedule::wsd, kLrSchedules)});
    list.entry("cooldown-fraction", s.curve.cooldown,
        "share of the run's steps, or of its time, in the cool-down of wsd; at most one step is none", Real{0, 1});
    list.entry("cooldown-shape", s.curve.shape,
        "decay in the cool-down of wsd; 1-sqrt: final + (peak - final) * (1 - sqrt(x)), where x goes from 0 to 1",
        kCooldownShapes);
    list.need();
}

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
