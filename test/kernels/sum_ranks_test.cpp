// sum_ranks_test.cpp - refused arguments of the sum over ranks (its results: operations/sum_ranks.cpp)
#include "kernels/sum_ranks.h"

#include "test/support/support.h"

using namespace test;

TEST_CASE("a sum over ranks rejects invalid sizes and addresses", "[sum_ranks][one_order]") {
    const auto array = poisoned<float>(64), rows = poisoned<float>(128);
    const auto a = array.span(), b = rows.span();
    REQUIRE_THROWS_WITH((kernels::sum_ranks<float>({a, a.first(32), b, 64, 0, 2}, nullptr)),
                        Contains("own contribution"));
    REQUIRE_THROWS_WITH((kernels::sum_ranks<float>({a, a, b, 64, 0, 3}, nullptr)), Contains("one row per rank"));
    REQUIRE_THROWS_WITH((kernels::sum_ranks<float>({a.subspan(1), a.subspan(1), b, 64, 0, 2}, nullptr)),
                        Contains("64 bytes"));
    REQUIRE_THROWS_WITH((kernels::sum_ranks<float>({a, a, b, 64, 2, 2}, nullptr)), Contains("rank"));
}
