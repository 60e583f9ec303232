// stretches_test.cpp - what stretches of a flat array cover together
#include "llmc/model/stretches.h"

#include "test/support/support.h"

namespace {

using llmc::ShardRange;

}  // namespace

TEST_CASE("stretches are disjoint or not, in any order", "[checkpoint]") {
    CHECK(llmc::are_disjoint({}));
    CHECK(llmc::are_disjoint({{.first = 3, .size = 3}, {.first = 0, .size = 3}, {.first = 1, .size = 0}}));
    CHECK_FALSE(llmc::are_disjoint({{.first = 3, .size = 3}, {.first = 0, .size = 4}}));
    CHECK_FALSE(llmc::are_disjoint({{.first = 0, .size = 9}, {.first = 2, .size = 1}}));
}

TEST_CASE("stretches cover every element as often, or some more often than others", "[checkpoint]") {
    CHECK(llmc::times_covered({}, 6) == 0);
    CHECK(llmc::times_covered({{.first = 0, .size = 6}, {.first = 4, .size = 2}, {.first = 0, .size = 4}}, 6) == 2);
    CHECK_FALSE(llmc::times_covered({{.first = 0, .size = 5}}, 6));
    CHECK_FALSE(llmc::times_covered({{.first = 1, .size = 5}}, 6));
    // as many elements as two times six
    CHECK_FALSE(llmc::times_covered({{.first = 0, .size = 6}, {.first = 0, .size = 3}, {.first = 0, .size = 3}}, 6));
}
