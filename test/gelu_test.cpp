// gelu_test.cpp - GELU and its gradient against fp64, over the whole range of the type
#include "kernels/gelu.h"
#include "test/support.h"

using kernels::bf16;

namespace {

double gelu(double x) { return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }
double gelu_slope(double x) {
    const double tanh = std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x));
    return 0.5 * (1 + tanh) + 0.5 * x * (1 - tanh * tanh) * std::sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
}

// exp is good to 3e-7 for |x| <= 87 on a CPU and to 2 + |x| units in the last place on a GPU (math.cuh); the argument of exp, at most 2.5 times as
// steep as x where the slope of GELU is not yet flat, carries three roundings, and the sums and products after it four more.
constexpr double kGate = 3e-7 + 10 * 6e-8;

template <class T> std::vector<T> inputs(std::size_t size) {
    auto x = test::normal<T>(size, 3, 3);
    const double special[] = {0.0, -0.0, 1e-30, -1e-30, 5.0, -5.0, 12.0, -12.0, 300.0, -300.0, 1e6, -1e6};
    for (std::size_t i = 0; i < std::min(size, std::size(special)); ++i) x[i] = test::narrow<T>(special[i]);
    return x;
}

}  // namespace

TEMPLATE_TEST_CASE("gelu_forward equals fp64", "[gelu]", float, bf16) {
    const std::size_t size = GENERATE(8, 32, 24, 1000, 4096 * 8 + 8, 100 * 1024);  // one pack, tails, several blocks and a tail, large packs
    CAPTURE(size);
    const auto x = inputs<TestType>(size);
    const auto in = test::on_device(x);
    const auto out = test::poisoned<TestType>(size);
    kernels::gelu_forward<TestType>({out.span(), in.span()}, nullptr);
    const auto got = out.download(nullptr);
    double worst = 0;
    for (std::size_t i = 0; i < size; ++i) {
        const double wide = test::widen(x[i]), want = gelu(wide), bound = 0.5 * test::ulp<TestType>(want) + kGate * std::fabs(wide);
        worst = std::isnan(test::widen(got[i])) ? INFINITY : std::max(worst, std::fabs(test::widen(got[i]) - want) / (bound + 1e-37));
    }
    CHECK(worst <= 1);
}

TEMPLATE_TEST_CASE("gelu_forward keeps its digits where it is small", "[gelu]", float) {
    std::vector<float> x;
    for (int i = 0; i < 64; ++i) x.push_back(-0.05f * i);
    const auto in = test::on_device(x);
    const auto out = test::poisoned<float>(x.size());
    kernels::gelu_forward<float>({out.span(), in.span()}, nullptr);
    const auto got = out.download(nullptr);
    for (std::size_t i = 0; i < x.size(); ++i) {
        CAPTURE(x[i], got[i]);
        CHECK(std::fabs(got[i] - gelu(x[i])) <= 6 * kGate * std::fabs(gelu(x[i])));  // the argument of exp reaches 7 here, and its rounding with it
    }
}

TEMPLATE_TEST_CASE("gelu_backward equals fp64, in place too", "[gelu]", float, bf16) {
    const std::size_t size = GENERATE(8, 32, 24, 1000, 4096 * 8 + 8, 100 * 1024);
    const bool in_place = GENERATE(false, true);
    CAPTURE(size, in_place);
    const auto x = inputs<TestType>(size), dy = test::normal<TestType>(size, 4);
    const auto in = test::on_device(x), dout = test::on_device(dy);
    const auto separate = test::poisoned<TestType>(size);
    const auto& din = in_place ? dout : separate;
    kernels::gelu_backward<TestType>({din.span(), dout.span(), in.span()}, nullptr);
    const auto got = din.download(nullptr);
    double worst = 0;
    for (std::size_t i = 0; i < size; ++i) {
        const double wide = test::widen(x[i]), d = test::widen(dy[i]), want = d * gelu_slope(wide);
        // The slope's second term is x g (1 - g) times at most 1.6 + 0.22 x^2, and vanishes for |x| above 5.
        const double reach = 1 + std::min(std::fabs(wide), 5.0) * 1.6;
        const double bound = 0.5 * test::ulp<TestType>(want) + kGate * reach * std::fabs(d);
        worst = std::isnan(test::widen(got[i])) ? INFINITY : std::max(worst, std::fabs(test::widen(got[i]) - want) / bound);
    }
    CHECK(worst <= 1);
}

TEMPLATE_TEST_CASE("GELU passes on what is not a number", "[gelu]", float, bf16) {
    std::vector<TestType> x(32, test::narrow<TestType>(1)), dy = x;
    x[3] = test::narrow<TestType>(NAN);
    const auto in = test::on_device(x), dout = test::on_device(dy);
    const auto out = test::poisoned<TestType>(32), din = test::poisoned<TestType>(32);
    kernels::gelu_forward<TestType>({out.span(), in.span()}, nullptr);
    kernels::gelu_backward<TestType>({din.span(), dout.span(), in.span()}, nullptr);
    const auto y = test::widen(out.download(nullptr)), dx = test::widen(din.download(nullptr));
    for (int i = 0; i < 32; ++i) {
        CHECK(std::isnan(y[i]) == (i == 3));
        CHECK(std::isnan(dx[i]) == (i == 3));
    }
}

TEST_CASE("GELU refuses what it cannot do", "[gelu]") {
    llmc::DeviceArray<float> a(32), b(32);
    const auto part = [](const llmc::DeviceArray<float>& array, std::size_t size) { return array.span().first(size); };
    CHECK_THROWS_WITH(kernels::gelu_forward<float>({part(a, 18), part(b, 18)}, nullptr), Catch::Contains("is 18"));
    CHECK_THROWS_WITH(kernels::gelu_forward<float>({part(a, 16), part(b, 32)}, nullptr), Catch::Contains("output is 16"));
    CHECK_THROWS_WITH(kernels::gelu_backward<float>({part(a, 16), part(b, 32), part(b, 32)}, nullptr), Catch::Contains("input gradient is 16"));
    CHECK_THROWS_WITH(kernels::gelu_backward<float>({part(a, 32), part(b, 16), part(b, 32)}, nullptr), Catch::Contains("output gradient is 16"));
    CHECK_THROWS_WITH(kernels::gelu_backward<float>({part(a, 18), part(b, 18), part(b, 18)}, nullptr), Catch::Contains("is 18"));
    CHECK_NOTHROW(kernels::gelu_forward<float>({part(a, 0), part(b, 0)}, nullptr));
}
