// element_ranges_test.cpp - coverage of a flat array by ranges
#include "llmc/model/element_ranges.h"

#include "test/support/support.h"

TEST_CASE("times_covered() is empty unless ranges cover all elements equally often", "[checkpoint]") {
    CHECK(llmc::times_covered({{.first = 0, .size = 6}, {.first = 4, .size = 2}, {.first = 0, .size = 4}}, 6) == 2);
    CHECK_FALSE(llmc::times_covered({{.first = 1, .size = 5}}, 6));
    // the total is 12, but not every element is covered twice
    CHECK_FALSE(llmc::times_covered({{.first = 0, .size = 6}, {.first = 0, .size = 3}, {.first = 0, .size = 3}}, 6));
}
