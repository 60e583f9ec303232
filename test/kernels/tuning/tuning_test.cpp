// tuning_test.cpp - which candidate is taken for its times, how they are timed, and what is known of earlier choices
#include <cmath>
#include <set>
#include <string>

#include "kernels/device/memory.h"
#include "kernels/tuning/choices.h"
#include "kernels/tuning/timing.h"
#include "test/support/support.h"

using namespace kernels;

TEST_CASE("the first candidate is taken unless another is clearly faster", "[tuning][one_order]") {
    const auto chosen = [](std::vector<double> seconds) { return choose_by_time(seconds); };
    CHECK(chosen({1.0}) == 0);
    CHECK(chosen({1.0, 1.0, 1.0}) == 0);
    CHECK(chosen({1.0, 0.99, 1.2}) == 0);        // noise
    CHECK(chosen({1.0, 0.99, 0.97}) == 2);
    CHECK(chosen({1.0, 0.5, 0.5}) == 1);         // of equals the earlier
    CHECK(chosen({2.0, 1.0, 0.999}) == 2);       // only the first is preferred
    CHECK(chosen({INFINITY, 3.0, 2.0}) == 2);
    CHECK(chosen({1.0, INFINITY}) == 0);
    CHECK(chosen({INFINITY, INFINITY}) == -1);
    CHECK(chosen({}) == -1);
}

TEST_CASE("candidates run in turns, and one that throws is not run again", "[tuning][one_order]") {
    std::string order;
    device::Array<float> large(1 << 20);  // its filling takes longer than doing nothing
    const auto seconds = time_candidates(
        3,
        [&](int candidate) {
            order += char('a' + candidate);
            if (candidate == 1 && order.size() > 4) throw Error("this one can no more", Blame::runtime);
            if (candidate == 2) large.zero(nullptr);
        },
        1 << 16, nullptr);
    CHECK(order == "abcabcacacacac");
    REQUIRE(seconds.size() == 3);
    CHECK(seconds[0] >= 0);
    CHECK(std::isinf(seconds[1]));
    CHECK((seconds[2] > seconds[0] && std::isfinite(seconds[2])));
    CHECK(time_candidates(0, [](int) {}, 0, nullptr).empty());
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
