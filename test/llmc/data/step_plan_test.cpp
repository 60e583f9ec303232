// step_plan_test.cpp - the size and the place of every step, for one size, several, and those of a resumed run
#include "llmc/data/step_plan.h"

#include "llmc/run/control/schedule.h"
#include "test/support/support.h"

using namespace llmc;
using test::Contains;

namespace {

const BatchShape kBatch{.micro_batch = 2, .seq_len = 5, .world = 3};  // 30 positions

}  // namespace

TEST_CASE("a step plan gives the size and the place of every step", "[step_plan]") {
    StepPlan plan(kBatch, {{0, 120}});
    const StepSize third = plan.at(3);
    CHECK((third.number == 3 && third.positions == 120));
    CHECK(third.positions_before == 240);
    CHECK(third.positions_after() == 360);
    CHECK(third.micro_batches == 4);
    CHECK((third.begins == 2 && third.ends == 3 && third.relative == 1));
    CHECK(plan.steps_until(240) == 2);
    CHECK(plan.steps_until(241) == 3);
    CHECK(plan.steps_within(359) == 2);
    CHECK_FALSE(plan.ends_after(0));
    plan.total = 5;
    CHECK(plan.ends_after(5));
    CHECK(plan.positions_left(2) == 360);
    plan.set_workers(3, 2);  // from the third step on
    CHECK((plan.at(2).workers == 1 && plan.at(2).positions_of_worker() == 120));
    CHECK((plan.at(3).workers == 3 && plan.at(3).positions_of_worker() == 40 && plan.smallest_of_worker() == 40));
    CHECK_THROWS_WITH(StepPlan(kBatch, {{0, 65}}), Contains("a size of --batch-schedule is 65; expected a mult") &&
                                                       Contains("2 * 5 * 3 = 30; the nearest are 60 and 90"));
    CHECK_THROWS_WITH(StepPlan(kBatch, {{0, 29}}, {}, 0, "-d"), Contains("-d is 29;") && Contains("the nearest is 30"));
    CHECK_THROWS_WITH(StepPlan({}, {{0, std::int64_t(1) << 31}}), Contains("at most 2147483647 micro-batches of 1 t"));
}

TEST_CASE("sizes of steps change at the first step after their tokens", "[step_plan]") {
    StepPlan plan(kBatch, {{0, 30}, {61, 60}, {210, 120}, {300, 30}});
    const std::vector<std::int64_t> sizes{30, 30, 30, 60, 60, 120, 30, 30};  // and 30 after them
    std::int64_t before = 0;
    for (std::int64_t step = 0; step < 20; ++step) {
        const StepSize size = plan.at(step + 1);
        CAPTURE(step);
        CHECK(size.positions == (step < 8 ? sizes[std::size_t(step)] : 30));
        CHECK((size.positions_before == before && plan.positions_in(step) == before));
        CHECK(size.micro_batches == size.positions / 30);
        CHECK(size.changes == (step == 3 || step == 5 || step == 6));
        CHECK((size.begins == double(before) / 30 && size.begins == plan.in_first_steps(step) &&
                size.ends == double(before + size.positions) / 30));
        CHECK(size.relative == double(size.positions) / 30);
        CHECK(plan.steps_until(before) == step);
        CHECK(plan.steps_until(before + 1) == step + 1);
        CHECK(plan.steps_within(before) == step);
        CHECK(plan.steps_within(before + size.positions - 1) == step);
        before += size.positions;
    }
    CHECK(plan.changes() == std::vector<BatchChange>{{0, 30}, {3, 60}, {5, 120}, {6, 30}});
    CHECK((plan.smallest() == 30 && plan.largest() == 120 && plan.common() == 30));
    CHECK(StepPlan(kBatch, {{0, 30}, {90, 60}, {210, 120}, {330, 30}}).changes() == plan.changes());
    plan.total = 8;
    CHECK(plan.positions_left(4) == 240);
    CHECK_THROWS_WITH(StepPlan(kBatch, {{0, 30}, {60, 45}}), Contains("a size of --batch-schedule is 45; expected a"));
    CHECK_THROWS_WITH(StepPlan(kBatch, {{0, 30}, {31, 60}, {60, 90}}),
                      Contains("--batch-schedule: the size from 31 tokens on is without a step; expected"));
}

TEST_CASE("a resumed run keeps the sizes of the steps it has made", "[step_plan]") {
    const BatchSchedule schedule{{0, 60}, {121, 120}, {400, 240}};
    const StepPlan whole(kBatch, schedule);
    for (std::int64_t step = 0; step < 8; ++step) {
        const StepPlan resumed(kBatch, schedule, whole.changes(), step);
        CHECK(resumed.changes() == whole.changes());
        CHECK(resumed.largest() == 240);
        CHECK(resumed.smallest() == (step < 3 ? 60 : step < 5 ? 120 : 240));
    }
    // Another size from here on, also on ranks that could not make the earlier ones.
    const BatchShape other{.micro_batch = 1, .seq_len = 5, .world = 7};
    const StepPlan changed(other, {{0, 70}, {420, 35}}, whole.changes(), 4);
    CHECK(changed.changes() == std::vector<BatchChange>{{0, 60}, {3, 120}, {4, 70}, {6, 35}});
    CHECK((changed.positions_in(4) == 300 && changed.positions_in(6) == 440));
    CHECK((changed.smallest() == 35 && changed.largest() == 70 && changed.common() == 35));
    CHECK(StepPlan(other, {{0, 70}}, changed.changes(), 4).changes() ==
          std::vector<BatchChange>{{0, 60}, {3, 120}, {4, 70}});
}

TEST_CASE("the learning rate follows the tokens and the size of a step", "[step_plan][schedule]") {
    const StepPlan constant(kBatch, {{0, 30}}), doubling(kBatch, {{0, 30}, {300, 60}});
    for (const LrSchedule kind : {LrSchedule::cosine, LrSchedule::linear, LrSchedule::wsd}) {
        Schedule schedule{.kind = kind, .peak = 1, .final_fraction = 0.1, .warmup_steps = 4, .total_steps = 40,
                          .batch_exponent = 0};
        for (std::int64_t step = 1; step <= 25; ++step) {
            CAPTURE(int(kind), step);
            const std::int64_t as = step <= 11 ? step : 2 * step - 11;  // as many tokens before it
            CHECK(schedule.learning_rate(doubling.at(step)) == schedule.learning_rate(constant.at(as)));
        }
        const double rate = schedule.learning_rate(doubling.at(13));
        schedule.batch_exponent = 0.5;
        CHECK(schedule.learning_rate(doubling.at(13)) == rate * std::sqrt(2.0));
        schedule.batch_exponent = 1;
        CHECK(schedule.learning_rate(doubling.at(13)) == 2 * rate);
        CHECK(schedule.learning_rate(doubling.at(10)) == schedule.learning_rate(constant.at(10)));
    }
    // A warm-up in which the size changes: peak times the share of its tokens at the end of a step.
    const StepPlan early(kBatch, {{0, 30}, {60, 60}});
    const Schedule warm{.peak = 1, .warmup_steps = 8, .total_steps = 40, .batch_exponent = 0};
    CHECK(warm.learning_rate(early.at(2)) == 2.0 / 8);
    CHECK(warm.learning_rate(early.at(3)) == 4.0 / 8);
}
