// plain_product_gpu_test.cpp - the product for shapes without an algorithm against fp64: one row, one column, K = 1
#include "kernels/matmul/plain_product.h"

#include <array>

#include "test/support/support.h"

using namespace test;
using kernels::bf16;
using kernels::MatrixView;
using kernels::PlainProduct;

namespace {

// One of the three products of a linear layer, which differ in the transposed factors.
template <class T, class Out>
void check(int m, int n, int k, bool a_transposed, bool b_transposed, bool biased, bool accumulate) {
    CAPTURE(m, n, k, a_transposed, b_transposed, biased, accumulate);
    const auto a = normal<T>(std::size_t(m) * k, 1), b = normal<T>(std::size_t(k) * n, 2), bias = normal<T>(n, 3);
    const auto before = normal<Out>(std::size_t(m) * n, 4);
    const auto device_a = on_device(a), device_b = on_device(b), device_bias = on_device(bias);
    const auto out = accumulate ? on_device(before) : poisoned<Out>(before.size());
    const MatrixView<T> view_a{device_a.span().data(), a_transposed ? 1 : k, a_transposed ? m : 1};
    const MatrixView<T> view_b{device_b.span().data(), b_transposed ? 1 : n, b_transposed ? k : 1};
    const T* const device_bias_or_none = biased ? device_bias.span().data() : nullptr;
    PlainProduct<T, Out> product{out.span(), view_a, view_b, device_bias_or_none, m, n, k};
    if (accumulate) product.beta = 1, product.addend = out.span().data();
    kernels::plain_product<T, Out>(product, nullptr);
    const auto got = out.download(nullptr);
    for (int i = 0; i < m; ++i)
        for (int j = 0; j < n; ++j) {
            double want = biased ? widen(bias[j]) : 0, magnitude = std::fabs(want);
            for (int x = 0; x < k; ++x) {
                const double term = widen(a[a_transposed ? x * m + i : i * k + x]) *
                                    widen(b[b_transposed ? j * k + x : x * n + j]);
                want += term;
                magnitude += std::fabs(term);
            }
            if (accumulate) want += widen(before[i * n + j]);
            const double rounding = std::is_same_v<Out, bf16> ? 0x1p-8 * std::fabs(want) : 0;
            INFO("element " << i << ", " << j);
            REQUIRE(std::fabs(widen(got[i * n + j]) - want) <= (k + 2) * 0x1p-24 * (magnitude + 1) + 1.01 * rounding);
        }
}

}  // namespace

TEMPLATE_TEST_CASE("a plain product of any shape equals fp64", "[plain_product][one_order]", float, bf16) {
    for (const auto& [m, n, k] : {std::array{1, 1, 1}, {1, 24, 40}, {24, 1, 40}, {24, 40, 1}, {37, 29, 19}}) {
        check<TestType, TestType>(m, n, k, false, true, true, false);   // forward
        check<TestType, TestType>(m, n, k, false, false, false, false); // gradient of the input
        check<TestType, float>(m, n, k, true, false, false, false);     // gradient of the weight
        check<TestType, float>(m, n, k, true, false, false, true);
    }
}
