// periodic_test.cpp - what is due when, in a run and in one that goes on with it
#include "llmc/run/control/periodic.h"

#include <catch2/catch.hpp>
#include <vector>

using llmc::Periodic;

namespace {

// The steps after which it is done in a run over steps `first` to `last`, the run's end.
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

TEST_CASE("it comes after every so many steps and where the run ends", "[periodic]") {
    const auto before = Periodic::First::before_steps, after = Periodic::First::after_a_step;
    CHECK(steps_done({3, 8, before}, 0, 8) == Steps{0, 3, 6, 8});
    CHECK(steps_done({3, 8, after}, 0, 8) == Steps{3, 6, 8});
    CHECK(steps_done({4, 8, before}, 0, 8) == Steps{0, 4, 8});
    CHECK(steps_done({3, 8, after}, 0, 4) == Steps{3, 4});  // stopped before its last step
    CHECK(steps_done({3, 8, after}, 0, 0).empty());
    CHECK(steps_done({0, 8, before}, 0, 8).empty());
}

TEST_CASE("a run that is gone on with leaves it to be done, once", "[periodic]") {
    const auto go_on = [](Periodic stopped, std::int64_t step, std::int64_t steps) {
        Periodic later(3, steps, Periodic::First::before_steps);
        later.restore(step, stopped.pending());
        return steps_done(later, step, steps);
    };
    Periodic stopped(3, 8, Periodic::First::before_steps);
    stopped.reach(3);
    CHECK(stopped.pending());
    CHECK(go_on(stopped, 3, 8) == Steps{3, 6, 8});  // a signal cut it off
    stopped.done();
    CHECK_FALSE(stopped.pending());
    CHECK(go_on(stopped, 3, 8) == Steps{6, 8});
    stopped.reach(4);  // not due in a run that nothing stops
    CHECK_FALSE(stopped.pending());
    CHECK(go_on(stopped, 4, 8) == Steps{6, 8});
    stopped.reach(8);
    stopped.done();
    CHECK(go_on(stopped, 8, 8).empty());  // nothing is left
    CHECK(go_on(stopped, 8, 11) == Steps{9, 11});  // more steps are asked for
    Periodic never(0, 8, Periodic::First::before_steps);  // as now nothing says how it is done
    never.restore(3, true);
    CHECK_FALSE(never.due(true));
}
