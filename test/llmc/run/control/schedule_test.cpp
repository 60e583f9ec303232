// schedule_test.cpp - learning rates against published ones, and where each schedule changes
#include <cmath>

#include "llmc/run/control/schedule.h"
#include "test/support/catch.h"

using namespace llmc;

namespace {

// After `made` steps.
StepSize size_of(std::int64_t made) { return StepPlan({}, {{0, 1}}).at(made + 1); }

// To 1e-9 of the peak: the cosine loses digits near the end.
void check_rates(const Schedule& schedule, std::initializer_list<std::pair<std::int64_t, double>> expected) {
    for (const auto& [step, rate] : expected) {
        CAPTURE(step);
        CHECK(std::fabs(schedule.learning_rate(size_of(step)) - rate) <= 1e-9 * schedule.peak);
    }
}

}  // namespace

TEST_CASE("cosine learning rates equal the published recipe's", "[schedule]") {
    check_rates(
        {.kind = LrSchedule::cosine, .peak = 6e-4, .final_fraction = 0.1, .warmup_steps = 715, .total_steps = 19073},
        {{0, 8.3916083916e-07}, {1, 1.6783216783e-06}, {99, 8.3916083916e-05}, {713, 5.9916083916e-04}, {714, 6e-04},
         {715, 6e-04}, {716, 5.9999999605e-04}, {1000, 5.9967893984e-04}, {5000, 5.3060375144e-04}, {9894, 3.3e-04},
         {10000, 3.2510254652e-04}, {15000, 1.2297343086e-04}, {19000, 6.0021067978e-05}, {19072, 6.0000003954e-05},
         {19073, 6e-05}, {30000, 6e-05}});
    check_rates({.kind = LrSchedule::cosine, .peak = 6e-4, .final_fraction = 0.1, .warmup_steps = 10,
                 .total_steps = 50},
                {{0, 6e-05}, {9, 6e-04}, {10, 6e-04}, {30, 3.3e-04}, {49, 6.0832319892e-05}, {51, 6e-05}});
    check_rates({.kind = LrSchedule::cosine, .peak = 6e-4, .final_fraction = 0, .warmup_steps = 700,
                 .total_steps = 18865},
                {{0, 8.5714285714e-07}, {10000, 2.8871783199e-04}, {18864, 4.4866294114e-12}});
}

TEST_CASE("the other schedules change at their documented steps", "[schedule]") {
    check_rates({.kind = LrSchedule::linear, .peak = 1, .final_fraction = 0.2, .warmup_steps = 10, .total_steps = 110},
                {{0, 0.1}, {9, 1}, {10, 1}, {60, 0.6}, {110, 0.2}, {500, 0.2}});
    check_rates({.kind = LrSchedule::constant, .peak = 1, .final_fraction = 0.2, .warmup_steps = 4, .total_steps = 100},
                {{0, 0.25}, {3, 1}, {50, 1}, {1000, 1}});
    check_rates({.kind = LrSchedule::wsd, .peak = 1, .final_fraction = 0, .warmup_steps = 10, .total_steps = 100},
                {{4, 0.5}, {10, 1}, {80, 1}, {90, 0.5}, {100, 0}, {101, 0}});
}

TEST_CASE("the cool-down of wsd has the given share of the run, and decays linearly or as 1 - sqrt", "[schedule]") {
    Schedule wsd{.kind = LrSchedule::wsd, .peak = 1, .final_fraction = 0, .warmup_steps = 10, .total_steps = 100,
                 .cooldown = 0.4};
    check_rates(wsd, {{60, 1}, {70, 0.75}, {80, 0.5}, {100, 0}, {101, 0}});
    wsd.shape = CooldownShape::one_minus_sqrt;
    check_rates(wsd, {{60, 1}, {61, 1 - std::sqrt(1 / 40.0)}, {70, 0.5}, {100, 0}, {101, 0}});
    wsd.final_fraction = 0.2;
    check_rates(wsd, {{9, 1}, {60, 1}, {70, 0.6}, {100, 0.2}, {101, 0.2}});
    wsd.cooldown = 1;  // from the warm-up on
    check_rates(wsd, {{9, 1}, {10, 1}, {32, 0.2 + 0.8 * (1 - std::sqrt(22 / 90.0))}, {100, 0.2}});
    wsd.cooldown = 0;
    check_rates(wsd, {{10, 1}, {99, 1}, {100, 1}, {101, 0.2}});
    const Schedule timed{.kind = LrSchedule::wsd, .peak = 1, .final_fraction = 0, .cooldown = 0.4,
                         .shape = CooldownShape::one_minus_sqrt};
    for (const auto& [share, rate] : {std::pair(0.6, 1.0), {0.7, 0.5}, {1.0, 0.0}})
        CHECK(std::fabs(timed.learning_rate(size_of(5), share) - rate) < 1e-12);
}

TEST_CASE("a schedule without warm-up, or with nothing but warm-up, does not divide by 0", "[schedule]") {
    for (const auto kind : {LrSchedule::cosine, LrSchedule::linear, LrSchedule::constant, LrSchedule::wsd}) {
        const Schedule no_warmup{.kind = kind, .peak = 1, .final_fraction = 0.5, .warmup_steps = 0, .total_steps = 10};
        CHECK(no_warmup.learning_rate(size_of(0)) == 1);
        const Schedule all_warmup{.kind = kind, .peak = 1, .final_fraction = 0.5, .warmup_steps = 10,
                                  .total_steps = 10};
        for (std::int64_t step : {0, 9, 10, 11, 100}) {
            CAPTURE(int(kind), step);
            CHECK(std::isfinite(all_warmup.learning_rate(size_of(step))));
        }
        CHECK(all_warmup.learning_rate(size_of(9)) == 1);
    }
}

TEST_CASE("the schedule of a run whose length is a time follows the share of it", "[schedule][timed]") {
    const auto at = [](const Schedule& schedule, std::int64_t step, double share) {
        return schedule.learning_rate(size_of(step), share);
    };
    const Schedule cosine{.peak = 1, .final_fraction = 0.2};
    CHECK(at(cosine, 0, 0) == 0);
    CHECK(at(cosine, 99, 0.025) == 0.5);  // whatever the step
    CHECK(at(cosine, 3, 0.05) == 1);
    CHECK(std::fabs(at(cosine, 7, 0.525) - 0.6) < 1e-12);
    CHECK(at(cosine, 8, 1) == 0.2);
    const Schedule linear{.kind = LrSchedule::linear, .peak = 1, .final_fraction = 0},
        wsd{.kind = LrSchedule::wsd, .peak = 1, .final_fraction = 0};
    CHECK(std::fabs(at(linear, 5, 0.525) - 0.5) < 1e-12);
    CHECK((at(wsd, 5, 0.79) == 1 && std::fabs(at(wsd, 5, 0.9) - 0.5) < 1e-12 && at(wsd, 5, 1) == 0));
    CHECK(at({.kind = LrSchedule::constant, .peak = 1}, 5, 1) == 1);
    // A warm-up of steps, which a slow machine may not complete: the last rate is not above the final one.
    const Schedule steps{.kind = LrSchedule::linear, .peak = 1, .final_fraction = 0.2, .warmup_steps = 4};
    CHECK(at(steps, 0, 0) == 0.25);
    CHECK(std::fabs(at(steps, 1, 0.5) - 0.5 * 0.6) < 1e-12);
    CHECK(std::fabs(at(steps, 3, 0.5) - 0.6) < 1e-12);
    CHECK(std::fabs(at(steps, 100, 1) - 0.2) < 1e-12);
    CHECK(std::fabs(at(steps, 1, 1) - 0.5 * 0.2) < 1e-12);
}
