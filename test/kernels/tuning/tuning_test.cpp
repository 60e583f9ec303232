// tuning_test.cpp - timing and ranking of candidates, and the table of stored results
#include <chrono>
#include <string>
#include <thread>

#include "kernels/tuning/tuned_algorithms.h"
#include "kernels/tuning/timing.h"
#include "test/support/support.h"

using namespace kernels;

TEST_CASE("candidates are interleaved; only those near the fastest run again", "[tuning][host_time]") {
    std::string order;
    const auto run = [&](int candidate) {
        order += char('a' + candidate);
        if (candidate == 1 && order.size() > 5) throw Error("it fails now", Blame::runtime);
        device::sync(nullptr);  // a busy GPU reads its clock late for the start, too late for a sleep of the host
        std::this_thread::sleep_for(std::chrono::microseconds(candidate == 2 ? 20000 : 2000 + 2 * candidate));
    };
    const Timing timing = time_candidates({4, nullptr, run}, 1 << 16, nullptr);
    CHECK(order.substr(0, 14) == "abcdabcdacdacd");
    CHECK(std::ranges::count(order, 'c') == 4);   // not in the second pass
    CHECK(std::ranges::count(order, 'a') >= 4);
    REQUIRE(timing.seconds.size() == 4);
    CHECK(std::isinf(timing.seconds[1]));
    CHECK((timing.seconds[0] >= 0.002 && timing.seconds[2] >= 0.02));
    REQUIRE(timing.ranking.size() == 3);
    CHECK(timing.ranking.back() == 2);
    CHECK(timing.notes == "; 1 failed to run: it fails now");
    CHECK(time_candidates({}, 0, nullptr).ranking.empty());
}

TEST_CASE("the fastest candidate wins by any difference; ties: the first", "[tuning][one_order]") {
    Timing timing{{1.0, 0.995, INFINITY, 0.995}, {1, 3, 0}, ""};
    CHECK(fastest_reproducible(timing, [](int) { return true; }) == 1);
    CHECK(timing.notes.empty());
    CHECK(fastest_reproducible(timing, [](int candidate) { return candidate == 0; }) == 0);
    CHECK(timing.notes == "; 2 faster, but not bit-identical when repeated");
    CHECK(fastest_reproducible(timing, [](int) { return false; }) == -1);
}

TEST_CASE("without memory to flush the cache candidates are timed with warm caches, after load; a note says so",
          "[tuning][one_order]") {
    int runs = 0;
    const Timing timing = time_candidates({1, nullptr, [&](int) { ++runs; }, 1e-3}, std::size_t(-1) / 2, nullptr);
    CHECK(runs > 4);  // one as a warm-up, three as they are timed, the others as load
    CHECK(timing.ranking == std::vector<int>{0});
    CHECK_THAT(timing.notes, test::StartsWith("; timed with warm caches: "));
}
