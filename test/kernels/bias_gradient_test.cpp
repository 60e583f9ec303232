// bias_gradient_test.cpp - rejected inputs of the bias gradient (the rest: operations/bias_gradient.cpp)
#include "kernels/bias_gradient.h"
#include "kernels/device/memory.h"
#include "test/support/support.h"

using kernels::bf16;

TEST_CASE("bias_gradient rejects invalid inputs", "[bias_gradient]") {
    using Op = kernels::BiasGradient<float>;
    const device::Array<float> array(kernels::bias_gradient_scratch(32) + 64);
    const auto run = [](const Op& op) { kernels::bias_gradient<float>(op, nullptr); };
    const auto all = array.span();
    const Op op{all, all, all, 2, 32, false};
    test::check_sizes(op, run, std::pair("the size of dbias", &Op::dbias), std::pair("scratch", &Op::scratch),
                      std::pair("the size of dout", &Op::dout));
    CHECK_THROWS_WITH(run({all, all, all, 2, 18, false}), test::Contains("channels of a bias gradient is 18"));
    CHECK_THROWS_WITH(run({all, all, all, 0, 32, false}), test::Contains("rows of a bias gradient is 0"));
    const device::Array<bf16> half(64);
    CHECK_THROWS_WITH(kernels::bias_gradient<bf16>({all, all, half.span(), 2, 20, false}, nullptr),
                      test::Contains("is 20"));
}
