// number_text_test.cpp - numbers, units and durations
#include "llmc/base/number_text.h"

#include <cmath>

#include "test/support/catch.h"

using namespace llmc;
using namespace test;

TEST_CASE("long numbers have commas", "[number_text]") {
    const auto [number, text] = GENERATE(table<std::int64_t, std::string>(
        {{999, "999"}, {1000, "1,000"}, {124439808, "124,439,808"}, {-100, "-100"}, {-1234567, "-1,234,567"}}));
    CHECK(with_commas(number) == text);
}

TEST_CASE("a noun is plural unless the number is 1", "[number_text]") {
    CHECK(counted(1, "step") == "1 step");
    CHECK(counted(0, "step") == "0 steps");
    CHECK(counted(1200, "step") == "1200 steps");
    CHECK(with_commas(1, "token") == "1 token");
    CHECK(with_commas(2048, "token") == "2,048 tokens");
}

TEST_CASE("units and durations take few columns", "[number_text]") {
    for (const auto& [number, text] :
         {std::pair(0.0, "0.00"), {9.994, "9.99"}, {9.995, "10.0"}, {99.95, "100"}, {999.4, "999"}, {999.5, "1.00k"},
          {6400, "6.40k"}, {12.3e6, "12.3M"}, {5e9, "5.00G"}})
        CHECK(short_text(number) == text);
    CHECK(mebibytes(12900000) == "12.3 MiB");
    for (const auto& [seconds, clock, left] :
         {std::tuple(41.6, "0:42", "0:42"), {187, "3:07", "3:07"}, {3765, "1:02:45", "1h02"},
          {86400 * 2 + 3600 * 3 + 600, "2d 03:10", "2d03h"}, {86400 * 100, "100d 00:00", "100d"}}) {
        CHECK(clock_text(seconds) == clock);
        CHECK(left_text(seconds) == left);
    }
    CHECK(clock_text(1e30) == "1.16e+25d");
    CHECK(format("%.1f %d", -std::fabs(NAN), 3) == "nan 3");
}
