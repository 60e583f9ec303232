// skip_test.cpp - hidden test cases that test/program/skips.sh counts: one passes, three are skipped, entirely or in
// part, and one is skipped in part and fails
#include "test/support/catch.h"

TEST_CASE("nothing is skipped", "[.][skips]") { SUCCEED(); }
TEST_CASE("all is skipped", "[.][skips][all_skipped]") { test::skip("no fish"); }
TEST_CASE("a value is skipped", "[.][skips]") {
    const int value = GENERATE(1, 2, 3);
    if (value == 2) test::skip("no fish");
    CHECK(value != 2);
}
TEST_CASE("a section is skipped", "[.][skips]") {
    SECTION("one") { test::skip("no lake: dry"); }
    SECTION("two") { SUCCEED(); }
}
TEST_CASE("a section is skipped, another fails", "[.][skips][fails]") {
    SECTION("one") { test::skip("no fish"); }
    SECTION("two") { CHECK(false); }
}
