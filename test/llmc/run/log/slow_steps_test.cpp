// slow_steps_test.cpp - the share of the processor, and the warning about steps that have become slow
#include "llmc/run/log/slow_steps.h"

#include <cmath>
#include <sched.h>
#include <thread>

#include "llmc/base/clock.h"
#include "test/support/catch.h"

using namespace llmc;
using namespace test;

TEST_CASE("threads that share a core get a part of the processor", "[slow_steps]") {
    ProcessorShare share;
    if (!share.latest(1e9)) skip("the kernel does not count how long threads wait for a core");
    CHECK(std::isnan(*share.latest(1e9)));
    cpu_set_t all, one;
    REQUIRE(sched_getaffinity(0, sizeof all, &all) == 0);
    CPU_ZERO(&one);
    int core = 0;
    while (!CPU_ISSET(core, &all)) ++core;
    CPU_SET(core, &one);
    REQUIRE(sched_setaffinity(0, sizeof one, &one) == 0);
    const auto spin = [until = seconds_now() + 0.2] { while (seconds_now() < until) {} };
    std::thread other(spin);  // on the same core
    spin();
    const double latest = share.latest(0).value();  // before the thread ends
    sched_setaffinity(0, sizeof all, &all);
    other.join();
    CHECK((latest > 0 && latest < 0.8));
    CHECK(share.latest(1e9) == latest);  // not read again within that time
}

TEST_CASE("steps that take twice as long cause one warning, with the likely cause", "[slow_steps]") {
    using Times = SlowSteps::Times;
    const Times fast{.step = 1, .data = 0, .ranks = 0, .share = 1};
    const auto warning_after = [&](std::initializer_list<Times> windows, double seconds = 1) {
        SlowSteps slow;
        std::string all;
        for (const Times& times : windows)
            for (std::size_t i = 0; i < SlowSteps::kSteps; ++i) all += slow.warning(times, seconds).value_or("");
        return all;
    };
    const auto slower = [](double step, double data = 0, double ranks = 0, double share = 1) {
        return Times{.step = step, .data = data, .ranks = ranks, .share = share};
    };
    CHECK(warning_after({fast, slower(1.9), fast}).empty());
    CHECK(warning_after({slower(3)}).empty());
    CHECK_THAT(warning_after({slower(1.5), fast, slower(2.5, 1.2), slower(9)}),
               StartsWith("a step takes 2.5 times as long as before (medians of 50 steps or more): it waits for "
                          "training data") && !Contains("reduced"));
    CHECK_THAT(warning_after({fast, slower(3, 0.1, 1.8)}), Contains(": it waits for other ranks"));
    CHECK_THAT(warning_after({fast, slower(3, 1.5, 0, 0.41)}), Contains("ran in only 41 % of the time"));
    CHECK_THAT(warning_after({slower(1, 0, 0, 0.4), slower(3, 1.5, 0, 0.4)}), Contains(": it waits for training data"));
    CHECK_THAT(warning_after({fast, slower(3, 0.1, 0.1)}), Contains(": it waits no longer for data, other ranks"));
    // 50 steps in less time are too few: the slow ones are a quarter of the second median.
    CHECK(warning_after({fast, fast, fast, fast, slower(3), fast, fast, fast},
                        SlowSteps::kSeconds / SlowSteps::kSteps / 4).empty());
}
