// tuning_test.cpp - how candidates are timed and ranked, and what is known of earlier choices
#include <algorithm>
#include <chrono>
#include <cmath>
#include <string>
#include <thread>

#include "kernels/device/memory.h"
#include "kernels/tuning/choices.h"
#include "kernels/tuning/first_bits.h"
#include "kernels/tuning/timing.h"
#include "test/support/support.h"

using namespace kernels;

namespace {

void wait_us(int microseconds) { std::this_thread::sleep_for(std::chrono::microseconds(microseconds)); }

}  // namespace

TEST_CASE("candidates run in turns, those near the fastest again, and one that throws no more", "[tuning][host_time]") {
    std::string order;
    const Timing timing = time_candidates(
        4,
        [&](int candidate) {
            order += char('a' + candidate);
            if (candidate == 1 && order.size() > 5) throw Error("this one cannot any more", Blame::runtime);
            wait_us(candidate == 2 ? 20000 : 2000 + 2 * candidate);
        },
        1 << 16, nullptr);
    CHECK(order.substr(0, 14) == "abcdabcdacdacd");
    CHECK(std::ranges::count(order, 'c') == 4);   // never in the final
    CHECK(std::ranges::count(order, 'a') >= 4);
    REQUIRE(timing.seconds.size() == 4);
    CHECK(std::isinf(timing.seconds[1]));
    CHECK((timing.seconds[0] >= 0.002 && timing.seconds[2] >= 0.02));
    REQUIRE(timing.ranking.size() == 3);
    CHECK(timing.ranking.back() == 2);
    CHECK(timing.notes == "; 1 cannot run: this one cannot any more");
    CHECK(time_candidates(0, [](int) {}, 0, nullptr).ranking.empty());
}

TEST_CASE("the fastest candidate wins by however little, and the earlier of two equal ones", "[tuning][one_order]") {
    Timing timing{{1.0, 0.995, INFINITY, 0.995}, {1, 3, 0}, ""};
    CHECK(fastest_that_repeats(timing, [](int) { return true; }) == 1);
    CHECK(timing.notes.empty());
    CHECK(fastest_that_repeats(timing, [](int candidate) { return candidate == 0; }) == 0);
    CHECK(timing.notes == "; 2 faster, but not repeatable bit for bit");
    CHECK(fastest_that_repeats(timing, [](int) { return false; }) == -1);
}

TEST_CASE("without memory to empty the cache candidates are timed all the same, and a note says so",
          "[tuning][one_order]") {
    const Timing timing = time_candidates(1, [](int) {}, std::size_t(1) << 50, nullptr);
    CHECK(timing.ranking == std::vector<int>{0});
    CHECK_THAT(timing.notes, test::StartsWith("; timed with warm caches: "));
}

TEST_CASE("whether runs leave the same bits is compared with the first of them", "[tuning][one_order]") {
    const std::vector<float> one = {1, 2, 3}, other = {1, 2, 4};
    FirstBits bits;
    for (const auto& [numbers, same] : {std::pair(&one, true), {&one, true}, {&other, false}, {&one, true}}) {
        const device::Array<float> array{std::span(*numbers), nullptr};
        CHECK(bits.match(array.span().data(), array.span().size_bytes(), nullptr) == same);
    }
}

TEST_CASE("choices are found by library and problem, and those used or timed are told apart", "[tuning][one_order]") {
    Choices choices;
    choices.known["lib 1"] = {{"a", {"x", "as kept", 1}}, {"b", {"y", "", 2}}};
    CHECK(choices.find("lib 2", "a") == nullptr);
    CHECK(choices.find("lib 1", "c") == nullptr);
    REQUIRE(choices.find("lib 1", "a"));
    CHECK(choices.find("lib 1", "a")->taken == "x");
    choices.keep("lib 2", "a", {"z", "timed", 3});
    CHECK(choices.find("lib 2", "a")->seconds == 3);
    const Choice kept{"x", "as kept", 1}, timed{"z", "timed", 3};
    CHECK(choices.used() == ChoiceTable{{"lib 1", {{"a", kept}}}, {"lib 2", {{"a", timed}}}});
    CHECK(choices.timed() == ChoiceTable{{"lib 2", {{"a", timed}}}});
    CHECK(count(choices.known) == 3);
    choices.reject("lib 1", "a");
    CHECK(choices.find("lib 1", "a") == nullptr);
    CHECK(count(choices.used()) == 1);
}
