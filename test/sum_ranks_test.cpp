// The sum over ranks, bit for bit against a plain loop in the order of the ranks.
#include "kernels/sum_ranks.h"

#include "test/support.h"

using namespace test;

namespace {

// Numbers of very different size, so that another order of summation gives other bits.
template <class T> std::vector<T> contribution(std::size_t size, int rank) { return normal<T>(size, 71 + rank, rank % 2 ? 1 : 1000); }

template <class T> void check(std::size_t elements, int ranks, int rank, bool in_place) {
    CAPTURE(elements, ranks, rank, in_place);
    const std::size_t stride = elements / 32 * 32 + 32;
    std::vector<T> others(stride * ranks, narrow<T>(NAN)), want;
    for (int r = 0; r < ranks; ++r)
        if (const auto x = contribution<T>(elements, r); r != rank) std::copy(x.begin(), x.end(), others.begin() + r * stride);
    std::vector<std::conditional_t<std::is_same_v<T, double>, double, float>> sum(elements);
    for (int r = 0; r < ranks; ++r) {
        const auto x = contribution<T>(elements, r);
        for (std::size_t i = 0; i < elements; ++i) {
            const decltype(sum[0] + 0) wide = widen(x[i]);
            sum[i] = r == 0 ? wide : sum[i] + wide;
        }
    }
    for (std::size_t i = 0; i < elements; ++i) want.push_back(narrow<T>(sum[i]));

    const auto own = on_device(contribution<T>(elements, rank)), device_others = on_device(others);
    const auto apart = poisoned<T>(elements);
    const auto out = in_place ? own.span() : apart.span();
    kernels::sum_ranks<T>({out, own.span(), device_others.span(), std::int64_t(stride), rank, ranks}, nullptr);
    const auto got = (in_place ? own : apart).download(nullptr);
    REQUIRE((elements == 0 || std::memcmp(got.data(), want.data(), elements * sizeof(T)) == 0));
}

}  // namespace

TEMPLATE_TEST_CASE("contributions are summed in the order of the ranks", "[sum_ranks]", float, bf16, double) {
    for (const std::size_t elements : {0, 1, 31, 32, 33, 4096, 5000, 20011})
        for (const int ranks : {1, 2, 3, 8})
            for (const int rank : {0, ranks / 2, ranks - 1}) check<TestType>(elements, ranks, rank, rank == 0);
}

TEST_CASE("a sum over ranks refuses sizes and addresses that do not fit", "[sum_ranks]") {
    const auto array = poisoned<float>(64), rows = poisoned<float>(128);
    const auto a = array.span(), b = rows.span();
    REQUIRE_THROWS_WITH((kernels::sum_ranks<float>({a, a.first(32), b, 64, 0, 2}, nullptr)), Catch::Contains("own contribution"));
    REQUIRE_THROWS_WITH((kernels::sum_ranks<float>({a, a, b, 64, 0, 3}, nullptr)), Catch::Contains("one row per rank"));
    REQUIRE_THROWS_WITH((kernels::sum_ranks<float>({a.subspan(1), a.subspan(1), b, 64, 0, 2}, nullptr)), Catch::Contains("64 bytes"));
    REQUIRE_THROWS_WITH((kernels::sum_ranks<float>({a, a, b, 64, 2, 2}, nullptr)), Catch::Contains("rank"));
}
