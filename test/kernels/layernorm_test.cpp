// layernorm_test.cpp - the two forms of layer normalisation are bit-identical; the sum of dresidual (the rest:
// operations/layernorm.cpp)
#include "kernels/layernorm.h"
#include "test/support/support.h"

using kernels::bf16;

namespace {

template <class T> bool same_device_bits(const device::Array<T>& a, const device::Array<T>& b) {
    return test::same_bits(a.download(nullptr), b.download(nullptr));
}

}  // namespace

// One shape for each instantiation of the kernels (operations/layernorm.cpp).
TEMPLATE_TEST_CASE("layer normalisation is bit-identical alone and after a residual addition, also in place",
                   "[layernorm]", float, bf16) {
    const auto [rows, channels] = GENERATE(
        table<int, int>({{37, 80}, {2, 1000}, {7, 1600}, {2, 1808}, {1, 12304}}));
    const bool in_place = GENERATE(false, true);
    CAPTURE(rows, channels, in_place);
    const std::size_t size = std::size_t(rows) * channels;
    const auto left = test::on_device(test::normal<TestType>(size, 1, 1, 100)),
               right = test::on_device(test::normal<TestType>(size, 2));
    const auto weight = test::on_device(test::normal<TestType>(channels, 3)),
               bias = test::on_device(test::normal<TestType>(channels, 4));
    const auto separate = test::poisoned<TestType>(size), fused = test::poisoned<TestType>(size),
               alone = test::poisoned<TestType>(size);
    const auto fused_mean = test::poisoned<float>(rows), fused_rstd = test::poisoned<float>(rows);
    const auto mean = test::poisoned<float>(rows), rstd = test::poisoned<float>(rows);
    const auto& residual = in_place ? left : separate;
    kernels::residual_layernorm_forward<TestType>(
        {residual.span(), fused.span(), fused_mean.span(), fused_rstd.span(), left.span(), right.span(), weight.span(),
         bias.span(), rows, channels},
        nullptr);
    kernels::layernorm_forward<TestType>({alone.span(), mean.span(), rstd.span(), residual.span(), weight.span(),
                                          bias.span(), rows, channels},
                                         nullptr);
    CHECK(same_device_bits(fused, alone));
    CHECK(same_device_bits(fused_mean, mean));
    CHECK(same_device_bits(fused_rstd, rstd));
}

// The tolerance is one float rounding per addition, which distinguishes sums of rounded and of unrounded elements.
TEMPLATE_TEST_CASE("the sum of dresidual is the sum of the stored elements", "[layernorm]", float, bf16) {
    const int rows = 67, channels = GENERATE(80, 1600);
    const std::size_t size = std::size_t(rows) * channels;
    const auto dnormed = test::on_device(test::normal<TestType>(size, 1)),
               residual = test::on_device(test::normal<TestType>(size, 2)),
               weight = test::on_device(test::normal<TestType>(channels, 3)),
               dresidual = test::on_device(test::normal<TestType>(size, 5));
    const auto mean = test::on_device(test::normal<float>(rows, 4)),
               rstd = test::on_device(std::vector<float>(rows, 1.0f));
    const auto dweight = test::poisoned<float>(channels), dbias = test::poisoned<float>(channels),
               sum = test::poisoned<float>(channels);
    const device::Array<float> scratch(kernels::layernorm_backward_scratch(channels));
    kernels::layernorm_backward<TestType>({dresidual.span(), dweight.span(), dbias.span(), sum.span(), scratch.span(),
                                           dnormed.span(), residual.span(), weight.span(), mean.span(), rstd.span(),
                                           rows, channels, true, false}, nullptr);
    const std::vector<double> stored = test::widen(dresidual.download(nullptr)),
                              got = test::widen(sum.download(nullptr));
    for (int c = 0; c < channels; ++c) {
        double want = 0, magnitude = 0;
        for (int row = 0; row < rows; ++row) {
            want += stored[std::size_t(row) * channels + c];
            magnitude += std::fabs(stored[std::size_t(row) * channels + c]);
        }
        REQUIRE(std::fabs(got[c] - want) <= rows * 0x1p-24 * magnitude);
    }
}
