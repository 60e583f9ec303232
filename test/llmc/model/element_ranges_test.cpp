// element_ranges_test.cpp - overlap and coverage of ranges of a flat array
#include "llmc/model/element_ranges.h"

#include "test/support/support.h"

TEST_CASE("are_disjoint() detects overlapping ranges in any order", "[checkpoint]") {
    CHECK(llmc::are_disjoint({}));
    CHECK(llmc::are_disjoint({{.first = 3, .size = 3}, {.first = 0, .size = 3}, {.first = 1, .size = 0}}));
    CHECK_FALSE(llmc::are_disjoint({{.first = 3, .size = 3}, {.first = 0, .size = 4}}));
    CHECK_FALSE(llmc::are_disjoint({{.first = 0, .size = 9}, {.first = 2, .size = 1}}));
}

TEST_CASE("times_covered() is empty unless ranges cover all elements equally often", "[checkpoint]") {
    CHECK(llmc::times_covered({}, 6) == 0);
    CHECK(llmc::times_covered({{.first = 0, .size = 6}, {.first = 4, .size = 2}, {.first = 0, .size = 4}}, 6) == 2);
    CHECK_FALSE(llmc::times_covered({{.first = 0, .size = 5}}, 6));
    CHECK_FALSE(llmc::times_covered({{.first = 1, .size = 5}}, 6));
    // the total is 12, but not every element is covered twice
    CHECK_FALSE(llmc::times_covered({{.first = 0, .size = 6}, {.first = 0, .size = 3}, {.first = 0, .size = 3}}, 6));
}
