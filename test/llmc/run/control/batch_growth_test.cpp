// batch_growth_test.cpp - --batch-schedule auto: when the tokens of a step double
#include "llmc/run/control/batch_growth.h"

#include <cmath>

#include "test/support/catch.h"

using namespace llmc;

namespace {

constexpr int kSoon = BatchGrowth::kStepsOfASize + BatchGrowth::kInARow - 1;  // steps of a size up to a decision

NoiseScale::Estimate at_least(double tokens, NoiseScale::State state = NoiseScale::State::weak) {
    return {.state = state, .signal = 1, .noise = 1, .scale = NAN, .relative_deviation = NAN, .at_least = tokens};
}

struct Growth {
    StepPlan steps{BatchShape{.micro_batch = 1, .seq_len = 8}, {{0, 16}}};
    BatchGrowth growth;

    explicit Growth(const BatchGrowth::Settings& settings, int in_a_row = 0) : growth(settings, steps, in_a_row) {}
    std::optional<BatchChange> measured(std::int64_t step, double tokens) {
        return growth.measured(step, at_least(tokens), steps.at(step).positions);
    }
};

}  // namespace

TEST_CASE("steps double after enough measurements in a row, up to the limit", "[batch_growth]") {
    Growth run({.most = 100, .kappa = 1.5});
    run.steps.set_length(16 * 1000, true);
    std::vector<BatchChange> changes;
    for (std::int64_t step = 0; step < 600; ++step)
        if (const auto change = run.measured(step, 1e6)) changes.push_back(*change);
    // A decision after kSoon steps of a size takes effect one step later; 128 tokens would be above the limit.
    CHECK(changes == std::vector<BatchChange>{{kSoon + 1, 32}, {2 * kSoon + 2, 64}});
    CHECK(run.steps.changes() == std::vector<BatchChange>{{0, 16}, changes[0], changes[1]});
    CHECK(run.steps.total == 2 * kSoon + 2 + (16 * 1000 - run.steps.at(2 * kSoon + 2).positions_before) / 64);
}

TEST_CASE("a measurement below the bound begins the count anew", "[batch_growth]") {
    const auto decided_after = [](double kappa, auto&& tokens, std::int64_t warmup = 0) {
        Growth run({.most = 1000, .kappa = kappa, .warmup_steps = warmup});
        for (std::int64_t step = 0; step < 1000; ++step)
            if (run.measured(step, tokens(step))) return step;
        return std::int64_t(-1);
    };
    CHECK(decided_after(1, [](auto) { return 32.0; }) == kSoon - 1);
    CHECK(decided_after(1, [](auto) { return 31.9; }) == -1);
    CHECK(decided_after(1, [](auto) { return NAN; }) == -1);
    CHECK(decided_after(0.5, [](auto) { return 16.0; }) == kSoon - 1);
    CHECK(decided_after(1, [](auto step) { return step == kSoon - 1 ? 0.0 : 32.0; }) ==
          kSoon - 1 + BatchGrowth::kInARow);
    CHECK(decided_after(1, [](auto step) { return step % BatchGrowth::kInARow ? 32.0 : 0.0; }) == -1);
    CHECK(decided_after(1, [](auto) { return 32.0; }, 500) == 500 + BatchGrowth::kInARow - 1);
    Growth warming({.most = 1000});
    for (std::int64_t step = 0; step < 300; ++step)
        CHECK(!warming.growth.measured(step, at_least(1e6, NoiseScale::State::warming), 16));
    // Of 8 valid targets in 16 positions; the noise scale is in valid targets.
    Growth half({.most = 1000});
    for (std::int64_t step = 0; step < kSoon - 1; ++step) CHECK(!half.growth.measured(step, at_least(16), 8));
    CHECK(half.growth.measured(kSoon - 1, at_least(16), 8));
    Growth off({});
    for (std::int64_t step = 0; step < 300; ++step) CHECK(!off.measured(step, 1e6));
}

TEST_CASE("a resumed run continues the count, and does not decide again", "[batch_growth]") {
    Growth whole({.most = 64});
    std::vector<int> counts;
    for (std::int64_t step = 0; step < 300; ++step) {
        whole.measured(step, 1e6);
        counts.push_back(whole.growth.in_a_row());
    }
    for (const std::int64_t from : {0, kSoon - 5, kSoon - 1, kSoon, kSoon + 1, kSoon + 2, 200}) {
        CAPTURE(from);
        // The checkpoint has what was decided before its step, also if it is to come.
        std::vector<BatchChange> made;
        for (const BatchChange& change : whole.steps.changes())
            if (change.step <= from + 1) made.push_back(change);
        StepPlan steps({.micro_batch = 1, .seq_len = 8}, {{0, 16}}, made, from, true);
        CHECK(steps.changes() == made);
        BatchGrowth growth({.most = 64}, steps, from > 0 ? counts[std::size_t(from - 1)] : 0);
        for (std::int64_t step = from; step < 300; ++step)
            growth.measured(step, at_least(1e6), steps.at(step).positions);
        CHECK(steps.changes() == whole.steps.changes());
    }
}
