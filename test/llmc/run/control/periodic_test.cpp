// periodic_test.cpp - when a periodic task is due, in a run and in a resumed run
#include "llmc/run/control/periodic.h"

#include <vector>

#include "test/support/catch.h"

using llmc::Periodic;

namespace {

// The steps after which the task runs, from step `first` to `last`, the end of the run.
std::vector<std::int64_t> steps_done(Periodic periodic, std::int64_t first, std::int64_t last) {
    std::vector<std::int64_t> done;
    for (std::int64_t step = first; step <= last; ++step) {
        periodic.reach(step);
        if (!periodic.due(step == last)) continue;
        done.push_back(step);
        periodic.done();
        CHECK_FALSE(periodic.due(true));  // once a step
        periodic.reach(step);
        CHECK_FALSE(periodic.due(true));
    }
    return done;
}

using Steps = std::vector<std::int64_t>;

}  // namespace

TEST_CASE("a task is due every N steps and when the run ends", "[periodic]") {
    const auto before = Periodic::First::before_steps, after = Periodic::First::after_a_step;
    CHECK(steps_done({3, 8, before}, 0, 8) == Steps{0, 3, 6, 8});
    CHECK(steps_done({3, 8, after}, 0, 8) == Steps{3, 6, 8});
    CHECK(steps_done({4, 8, before}, 0, 8) == Steps{0, 4, 8});
    CHECK(steps_done({3, 8, after}, 0, 4) == Steps{3, 4});  // stopped before its last step
    CHECK(steps_done({3, 8, after}, 0, 0).empty());
    CHECK(steps_done({0, 8, before}, 0, 8).empty());
}

TEST_CASE("a pending task runs once in the resumed run", "[periodic]") {
    const auto resume = [](Periodic stopped, std::int64_t step, std::int64_t steps) {
        Periodic later(3, steps, Periodic::First::before_steps);
        later.restore(step, stopped.pending());
        return steps_done(later, step, steps);
    };
    Periodic stopped(3, 8, Periodic::First::before_steps);
    stopped.reach(3);
    CHECK(stopped.pending());
    CHECK(resume(stopped, 3, 8) == Steps{3, 6, 8});  // a signal interrupted it
    stopped.done();
    CHECK_FALSE(stopped.pending());
    CHECK(resume(stopped, 3, 8) == Steps{6, 8});
    stopped.reach(4);  // not due, because the run does not end
    CHECK_FALSE(stopped.pending());
    CHECK(resume(stopped, 4, 8) == Steps{6, 8});
    stopped.reach(8);
    stopped.done();
    CHECK(resume(stopped, 8, 8).empty());  // no task is pending
    CHECK(resume(stopped, 8, 11) == Steps{9, 11});  // --max-steps is larger
    Periodic never(0, 8, Periodic::First::before_steps);  // disabled
    never.restore(3, true);
    CHECK_FALSE(never.due(true));
}
