// symmetric_product_test.cpp - symmetric products against fp64: whole and by half, symmetry
#include "kernels/device/device.h"
#include "kernels/matmul/matmul.h"
#include "test/support/support.h"

using namespace kernels;
using namespace test;

namespace {

struct Form {
    int m, k, batch;
    bool transposed, adds;
};

// rank 0: x is zero; 1: all of its rows (if transposed: columns) are multiples of one; 2: any x.
template <class T> void check(Matmul& matmul, const Form& form, int rank) {
    const auto [m, k, batch, transposed, adds] = form;
    CAPTURE(m, k, batch, transposed, adds, rank);
    const auto at = [&, m = m, k = k, t = transposed](int item, int i, int x) {
        return std::size_t(item) * m * k + (t ? std::size_t(x) * m + i : std::size_t(i) * k + x);
    };
    auto x = normal<T>(std::size_t(batch) * m * k, 1, 1 / std::sqrt(std::sqrt(k)));
    for (int item = 0; item < batch && rank < 2; ++item)
        for (int i = 0; i < m; ++i)
            for (int j = 0; j < k; ++j)
                x[at(item, i, j)] = narrow<T>(rank == 0 ? 0 : (i % 5 - 2) * widen(x[at(item, 0, j)]));
    auto addend = normal<T>(adds ? std::size_t(batch) * m * m : 0, 2);
    for (std::size_t i = 0; i < addend.size(); ++i) {  // from the lower triangle
        const std::size_t row = i / m % m, column = i % m;
        if (row < column) addend[i] = addend[i - row * m - column + column * m + row];
    }
    const auto device_x = on_device(x), device_addend = on_device(addend),
               out = poisoned<T>(std::size_t(batch) * m * m);
    constexpr float kAlpha = 0.75f, kBeta = -1.5f;
    matmul.multiply<T>({.out = out.span(), .x = device_x.span(), .addend = device_addend.span(), .m = m, .k = k,
                        .batch = batch, .transposed = transposed, .alpha = kAlpha, .beta = adds ? kBeta : 0}, nullptr);
    const auto got = out.download(nullptr);
    double excess = 0;
    bool symmetric = true;
    for (int item = 0; item < batch; ++item)
        for (int i = 0; i < m; ++i)
            for (int j = 0; j <= i; ++j) {
                const std::size_t low = (std::size_t(item) * m + i) * m + j, high = (std::size_t(item) * m + j) * m + i;
                symmetric &= same_bits(std::span(&got[low], 1), std::span(&got[high], 1));
                double sum = 0, magnitude = 0;
                for (int e = 0; e < k; ++e) {
                    const double term = widen(x[at(item, i, e)]) * widen(x[at(item, j, e)]);
                    sum += term, magnitude += std::fabs(term);
                }
                const double want = kAlpha * sum + (adds ? kBeta * widen(addend[low]) : 0);
                const double allowed = (k + 4) * 0x1p-24 * (magnitude + std::fabs(want) + 2) + 1.01 * ulp<T>(want);
                for (const std::size_t element : {low, high}) {
                    const double error = std::fabs(widen(got[element]) - want);
                    excess = std::max(excess, std::isnan(error) ? INFINITY : error - allowed);
                }
            }
    CHECK(excess <= 0);
    if (m >= 384 && !device::is_gpu()) CHECK(symmetric);  // computed by half
}

}  // namespace

TEMPLATE_TEST_CASE("a symmetric product equals fp64, and by half it is exactly symmetric", "[matmul][muon]", float,
                   bf16) {
    for (const auto arithmetic : {Bf16Arithmetic::native, Bf16Arithmetic::widen}) {
        Matmul matmul({.bf16 = arithmetic});
        for (const auto& [m, k, batch] : {std::array{8, 8, 1}, {48, 72, 3}, {384, 8, 2}, {392, 40, 1}, {520, 24, 1}})
            for (const bool transposed : {false, true})
                for (const bool adds : {false, true}) check<TestType>(matmul, {m, k, batch, transposed, adds}, 2);
        check<TestType>(matmul, {400, 16, 1, false, false}, 0);
        check<TestType>(matmul, {400, 16, 1, true, true}, 1);
        if (std::is_same_v<TestType, float>) break;
    }
}
