// sum_ranks_test.cpp - the sum over ranks in double, bit-identical to a plain loop in rank order (other types:
// operations/sum_ranks.cpp)
#include "kernels/sum_ranks.h"

#include "test/support/support.h"

using namespace test;

namespace {

// Numbers of very different magnitude, so that another order of summation gives different bits.
std::vector<double> contribution(std::size_t size, int rank) {
    return normal<double>(size, 71 + rank, rank % 2 ? 1 : 1000);
}

void check(std::size_t elements, int ranks, int rank) {
    CAPTURE(elements, ranks, rank);
    const std::size_t stride = elements / 32 * 32 + 32;
    std::vector<double> others(stride * ranks, NAN), want = contribution(elements, 0);
    for (int r = 0; r < ranks; ++r) {
        const auto x = contribution(elements, r);
        if (r != rank) std::copy(x.begin(), x.end(), others.begin() + r * stride);
        for (std::size_t i = 0; r > 0 && i < elements; ++i) want[i] += x[i];
    }
    const auto own = on_device(contribution(elements, rank)), device_others = on_device(others),
               out = poisoned<double>(elements);
    kernels::sum_ranks<double>({out.span(), own.span(), device_others.span(), std::int64_t(stride), rank, ranks},
                               nullptr);
    REQUIRE(same_bits(out.download(nullptr), want));
}

}  // namespace

TEST_CASE("contributions in double are summed in rank order", "[sum_ranks][one_order]") {
    for (const std::size_t elements : {0, 1, 7, 8, 9, 4096, 5000})
        for (const int ranks : {1, 2, 3, 8})
            for (const int rank : {0, ranks / 2, ranks - 1}) check(elements, ranks, rank);
}

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
