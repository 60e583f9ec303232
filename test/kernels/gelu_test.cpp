// gelu_test.cpp - NaN in GELU (the rest: operations/gelu.cpp)
#include "kernels/gelu.h"
#include "test/support/support.h"

using kernels::bf16;

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
