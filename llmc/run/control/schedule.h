// schedule.h - the learning-rate schedule
//
//   warm-up   step <= warmup:           peak step / warmup
//   cosine    warmup <= made <= total:  low + (1 + cos(pi (made - warmup) / (total - warmup))) / 2 * (peak - low),
//             low = peak * final_fraction
//   linear    the same with a straight line from peak to low
//   constant  peak
//   wsd       peak, then over the last `cooldown` of total, but after the warm-up: low + (1 - x) (peak - low), where x
//             goes from 0 to 1, or low + (1 - sqrt(x)) (peak - low) (warm-up, stable, decay: Hu et al. 2024, arXiv
//             2404.06395; 1 - sqrt: Haegele et al. 2024, arXiv 2405.18392)
//   later     low (constant: peak)
//
// The first step is 1, and made = step - 1. Both count tokens, in steps of the first one's size (StepSize::ends and
// begins). A step of f times the tokens of the first one has f^batch_exponent times this rate.
//
// In a run whose length is a time (without total_steps), the share of it that is used, from 0 to 1, takes the place of
// made and total. The warm-up is the first 5 % of the time: peak share / 0.05. With warmup > 0 it is of steps, and the
// rate is that of a schedule without warm-up times step / warmup.
#pragma once
#include <optional>

#include "llmc/base/names.h"
#include "llmc/base/option.h"
#include "llmc/data/step_plan.h"

namespace llmc {

enum class LrSchedule { cosine, linear, constant, wsd };
inline constexpr Named<LrSchedule> kLrSchedules[] = {{"cosine", LrSchedule::cosine},
                                                     {"linear", LrSchedule::linear},
                                                     {"constant", LrSchedule::constant},
                                                     {"wsd", LrSchedule::wsd}};

enum class CooldownShape { linear, one_minus_sqrt };
inline constexpr Named<CooldownShape> kCooldownShapes[] = {{"linear", CooldownShape::linear},
                                                           {"1-sqrt", CooldownShape::one_minus_sqrt}};

struct Schedule {
    LrSchedule kind = LrSchedule::cosine;
    double peak = 6e-4, final_fraction = 0.1;
    double warmup_steps = 0;              // of the first step's size, like
    std::optional<double> total_steps{};  // these; empty: the length is a time
    double cooldown = 0.2;  // of wsd: share of total
    CooldownShape shape = CooldownShape::linear;
    double batch_exponent = 0.5;

    // `share` of the time, without total_steps
    double learning_rate(const StepSize& step, double share = 0) const;

private:
    double of_progress(const StepSize& step, double share) const;
    double after_warmup(double at, double first, double last) const;  // the warm-up ends at `first`
};

struct ScheduleSettings {
    Schedule curve{};                                  // with the length and warm-up of a run when that is known
    std::int64_t warmup_steps = 0, warmup_tokens = 0;  // at most one of them

    std::int64_t warmup_of(const StepPlan& steps) const {  // in steps
        return warmup_tokens > 0 ? steps.steps_until(warmup_tokens) : warmup_steps;
    }
};
void add_options(OptionList& list, ScheduleSettings& settings);

}  // namespace llmc
