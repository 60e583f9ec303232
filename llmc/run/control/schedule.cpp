// schedule.cpp - the learning rate of a step
#include "llmc/run/control/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace llmc {
namespace {

constexpr double kDecayShare = 0.2;  // of all steps, in the wsd schedule

// The position of a step between `first` (0) and `last` (1). If there are no steps between them, all later ones are at
// 1.
double progress(std::int64_t step, double first, double last) {
    return last > first ? std::clamp((double(step) - first) / (last - first), 0.0, 1.0) : step > first ? 1.0 : 0.0;
}

}  // namespace

double Schedule::learning_rate(std::int64_t step) const {
    if (step < warmup_steps) return peak * double(step + 1) / double(warmup_steps);
    const double low = peak * final_fraction, first = double(warmup_steps), last = double(total_steps);
    switch (kind) {
        case LrSchedule::constant: return peak;
        case LrSchedule::linear: return peak + progress(step, first, last) * (low - peak);
        case LrSchedule::wsd: return peak + progress(step, std::max(first, last - kDecayShare * last),
                                                     last) * (low - peak);
        case LrSchedule::cosine: break;
    }
    return low + 0.5 * (1 + std::cos(std::numbers::pi * progress(step, first, last))) * (peak - low);
}

}  // namespace llmc
