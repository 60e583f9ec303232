// bias_gradient_test.cpp - rejected inputs of the bias gradient (the rest: operations/bias_gradient.cpp)
#include "kernels/bias_gradient.h"
#include "kernels/device/memory.h"
#include "test/support/support.h"

using kernels::bf16;

TEST_CASE("bias_gradient rejects invalid inputs", "[bias_gradient]") {
    device::Array<float> small(16), large(kernels::bias_gradient_scratch(32) + 64);
    const auto run = [&](std::span<float> dbias, std::span<float> scratch, std::span<const float> dout, int rows,
                         int channels) {
        kernels::bias_gradient<float>({dbias, scratch, dout, rows, channels, false}, nullptr);
    };
    const auto all = large.span(), few = small.span();
    CHECK_THROWS_WITH(run(all, all, all, 2, 18), test::Contains("channels of a bias gradient is 18"));
    CHECK_THROWS_WITH(run(all, all, all, 0, 32), test::Contains("rows of a bias gradient is 0"));
    CHECK_THROWS_WITH(run(all, all, few, 2, 32), test::Contains("the size of dout is 16"));
    CHECK_THROWS_WITH(run(few, all, all, 2, 32), test::Contains("the size of dbias is 16"));
    CHECK_THROWS_WITH(run(all, few, all, 2, 32), test::Contains("scratch is 16"));
    device::Array<bf16> half(64);
    CHECK_THROWS_WITH(kernels::bias_gradient<bf16>({all, all, half.span(), 2, 20, false}, nullptr),
                      test::Contains("is 20"));
}
