// gelu_test.cpp - small values and NaN in GELU (the rest: operations/gelu.cpp)
#include "kernels/device/memory.h"
#include "kernels/gelu.h"
#include "test/operations/gelu.h"
#include "test/support/support.h"

using kernels::bf16;

namespace {

using operations::gelu;
// The error of exp is 3e-7 for |x| <= 87 on a CPU and 2 + |x| units in the last place on a GPU (math.cuh). The argument
// of exp, whose slope is at most 2.5 where GELU is not yet flat, has three roundings, and the sums and products after
// it have four more.
constexpr double kGate = 3e-7 + 10 * 6e-8;

}  // namespace

TEMPLATE_TEST_CASE("gelu_forward is accurate for small results", "[gelu][one_order]", float) {
    std::vector<float> x;
    for (int i = 0; i < 64; ++i) x.push_back(-0.05f * i);
    const auto in = test::on_device(x);
    const auto out = test::poisoned<float>(x.size());
    kernels::gelu_forward<float>({out.span(), in.span()}, nullptr);
    const auto got = out.download(nullptr);
    for (std::size_t i = 0; i < x.size(); ++i) {
        CAPTURE(x[i], got[i]);
        // the argument of exp reaches 7 here, and its rounding with it
        CHECK(std::fabs(got[i] - gelu(x[i])) <= 6 * kGate * std::fabs(gelu(x[i])));
    }
}

TEMPLATE_TEST_CASE("GELU propagates NaN", "[gelu][one_order]", float, bf16) {
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
