// bias_gradient_test.cpp - column sums against fp64, in every mode and for every number of chunks
#include <omp.h>

#include "kernels/bias_gradient.h"
#include "test/support.h"

using kernels::bf16;

namespace {

template <class T>
struct Case {
    int rows, channels;
    std::vector<T> dout;
    std::vector<float> before;

    Case(int rows, int channels, double mean)
        : rows(rows), channels(channels), dout(test::normal<T>(std::size_t(rows) * channels, 1, 1, mean)), before(test::normal<float>(channels, 2)) {}

    std::vector<float> run(bool accumulate) const {
        const auto device_dout = test::on_device(dout);
        const auto dbias = accumulate ? test::on_device(before) : test::poisoned<float>(channels);
        const auto scratch = test::poisoned<float>(kernels::bias_gradient_scratch(channels));
        kernels::bias_gradient<T>({dbias.span(), scratch.span(), device_dout.span(), rows, channels, accumulate}, nullptr);
        return dbias.download(nullptr);
    }

    template <class Number> std::vector<double> sums(bool accumulate) const {
        std::vector<double> out;
        for (int c = 0; c < channels; ++c) {
            Number sum = 0;
            for (int row = 0; row < rows; ++row) sum += Number(test::widen(dout[std::size_t(row) * channels + c]));
            out.push_back(accumulate ? before[c] + sum : sum);
        }
        return out;
    }
};

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
    double largest = 0;
    for (std::size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::fabs(a[i] - b[i]));
    return largest;
}

}  // namespace

TEMPLATE_TEST_CASE("bias_gradient equals fp64", "[bias_gradient]", float, bf16) {
    // One row; less than a chunk; rows that no chunk or team divides; more chunks than there may be; channels past a slice or no multiple of 32.
    const auto [rows, channels] = GENERATE(table<int, int>({{1, 16}, {3, 48}, {63, 80}, {65, 264}, {517, 768}, {8300, 32}}));
    const double mean = GENERATE(0.0, 100.0);
    const bool accumulate = GENERATE(false, true);
    CAPTURE(rows, channels, mean, accumulate);
    const Case<TestType> c(rows, channels, mean);
    const auto want = c.template sums<double>(accumulate);
    // Twice what adding row after row in float loses, and the last rounding.
    const double bound = 2 * largest_difference(c.template sums<float>(accumulate), want) + test::ulp<float>(test::largest_magnitude(want));
    CHECK(test::largest_error(c.run(accumulate), want) <= bound);
}

TEMPLATE_TEST_CASE("bias_gradient repeats bit for bit, on any number of threads", "[bias_gradient]", float, bf16) {
    const Case<TestType> c(517, 80, 0);
    CHECK(test::repeats_on_any_threads([&] { return c.run(true); }));
}

TEST_CASE("bias_gradient refuses what it cannot do", "[bias_gradient]") {
    llmc::DeviceArray<float> small(16), large(kernels::bias_gradient_scratch(32) + 64);
    const auto run = [&](std::span<float> dbias, std::span<float> scratch, std::span<const float> dout, int rows, int channels) {
        kernels::bias_gradient<float>({dbias, scratch, dout, rows, channels, false}, nullptr);
    };
    const auto all = large.span(), few = small.span();
    CHECK_THROWS_WITH(run(all, all, all, 2, 18), Catch::Contains("channels of a bias gradient is 18"));
    CHECK_THROWS_WITH(run(all, all, all, 0, 32), Catch::Contains("rows of a bias gradient is 0"));
    CHECK_THROWS_WITH(run(all, all, few, 2, 32), Catch::Contains("the size of dout is 16"));
    CHECK_THROWS_WITH(run(few, all, all, 2, 32), Catch::Contains("the size of dbias is 16"));
    CHECK_THROWS_WITH(run(all, few, all, 2, 32), Catch::Contains("scratch is 16"));
    llmc::DeviceArray<bf16> half(64);
    CHECK_THROWS_WITH(kernels::bias_gradient<bf16>({all, all, half.span(), 2, 20, false}, nullptr), Catch::Contains("is 20"));
}
