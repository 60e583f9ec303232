// classifier_test.cpp - masked, ignored and invalid rows of the fused classifier (the rest:
// operations/classifier.cpp)
#include <cstring>
#include <climits>

#include "kernels/classifier.h"
#include "test/support/support.h"

using namespace kernels;
using namespace test;

namespace {

// Logits whose padded columns are NaN.
template <class T> struct Case {
    int vocabulary, padded;
    std::vector<int> targets;
    std::vector<T> logits;  // before the operation
    std::vector<float> losses = {};
    std::vector<T> after = {};

    Case(int vocabulary, int padded, const std::vector<int>& targets)
        : vocabulary(vocabulary), padded(padded), targets(targets),
          logits(normal<T>(targets.size() * std::size_t(padded), 1, 2)) {
        for (int row = 0; row < int(targets.size()); ++row)
            for (int c = vocabulary; c < padded; ++c) at(row, c) = narrow<T>(NAN);
    }
    T& at(int row, int column) { return logits[std::size_t(row) * padded + column]; }
    T after_at(int row, int column) const { return after[std::size_t(row) * padded + column]; }
    void run() {
        const auto device_logits = on_device(logits);
        const auto device_losses = poisoned<float>(targets.size());
        const auto device_targets = on_device(targets);
        classifier<T>({device_logits.span(), device_losses.span(), device_targets.span(), int(targets.size()),
                       vocabulary, padded, 1.0f / 37, true}, nullptr);
        losses = device_losses.download(nullptr);
        after = device_logits.download(nullptr);
    }
};

template <class T> bool is_plus_zero(T x) {
    const T zero{};
    return std::memcmp(&x, &zero, sizeof(T)) == 0;
}

}  // namespace

TEMPLATE_TEST_CASE("classifier finds the maximum at any position", "[classifier]", float, bf16) {
    const int where = GENERATE(0, 1, 4095, 8192, 50255, 50256);
    CAPTURE(where);
    Case<TestType> c(50257, 50304, {where});
    // masked logits add nothing
    for (int column = 0; column < c.vocabulary; column += 3) c.at(0, column) = narrow<TestType>(-INFINITY);
    // nor do whole runs of them
    for (int column = 0; column < 4200; ++column) c.at(0, column) = narrow<TestType>(-INFINITY);
    c.at(0, where) = narrow<TestType>(11.0);
    c.run();
    double sum = 0;
    for (int column = 0; column < c.vocabulary; ++column) sum += std::exp(widen(c.at(0, column)) - 11);
    // A term passes through at most 64 additions in a run, 64 runs, and 32 + 32 in reductions. Exponents are at most
    // 22, for which fast_exp (math.cuh) on a GPU may lose 2 + 22 units in the last place.
    constexpr double kError = 192 * 0x1p-24 + 24 * 0x1p-23 + 22 * 0x1p-24;
    CHECK(std::fabs(c.losses[0] - std::log(sum)) <= kError + 2 * ulp<float>(11));
    int wrong = 0;
    for (int column = 0; column < c.vocabulary; ++column) {
        const double p = std::exp(widen(c.at(0, column)) - 11) / sum, want = (p - (column == where)) / 37;
        wrong += !(std::fabs(widen(c.after_at(0, column)) - want) <=
                   (2 * kError * p + 3 * 0x1p-24) / 37 + 0.51 * ulp<TestType>(want));
    }
    CHECK(wrong == 0);
}

TEMPLATE_TEST_CASE("an ignored row has no loss and no gradient, for any contents", "[classifier]", float, bf16) {
    Case<TestType> c(257, 384, {kIgnoreTarget, kIgnoreTarget});
    for (int column = 0; column < c.padded; ++column) {
        c.at(0, column) = narrow<TestType>(NAN);
        c.at(1, column) = narrow<TestType>(column % 2 ? -INFINITY : INFINITY);
    }
    c.run();
    CHECK(std::ranges::all_of(c.losses, is_plus_zero<float>));
    CHECK(std::ranges::all_of(c.after, is_plus_zero<TestType>));
}

TEST_CASE("a target outside the vocabulary and a non-finite logit give NaN", "[classifier]") {
    Case<float> c(257, 384, {257, 383, -2, -100, INT_MAX, 5, 6});
    c.at(5, 100) = NAN;
    c.at(6, 256) = INFINITY;
    c.run();
    for (int row = 0; row < 7; ++row) {
        CAPTURE(row, c.losses[row]);
        CHECK(std::isnan(c.losses[row]));
        CHECK(std::isnan(c.after_at(row, 0)));
        CHECK(is_plus_zero(c.after_at(row, 300)));
    }
}

TEMPLATE_TEST_CASE("large logits do not hide the logarithm of the sum", "[classifier]", float, bf16) {
    const double large = GENERATE(-1e20, 1e4, 1e7, 1e20);
    CAPTURE(large);
    Case<TestType> c(257, 384, {7, 7, 7});
    for (int column = 0; column < c.vocabulary; ++column) {
        c.at(0, column) = narrow<TestType>(large);
        for (const int row : {1, 2}) c.at(row, column) = narrow<TestType>(column == 6 + row ? large : 0);
    }
    c.run();
    // Never a wrong number: a GPU rounds the maximum in units of ln(2), and exponentials of differences may overflow.
    const auto is = [&](int row, double loss) {
        return std::fabs(c.losses[std::size_t(row)] - loss) <= 1e-2 + 1e-6 * loss ||
               (std::fabs(large) > 1e10 && !std::isfinite(c.losses[std::size_t(row)]));
    };
    CAPTURE(c.losses);
    CHECK(is(0, std::log(257)));
    if (large < 0) return;
    CHECK(is(1, 0));                              // the target alone has the maximum
    CHECK(is(2, widen(narrow<TestType>(large))));  // another one has it
}

TEST_CASE("accumulate_losses adds every loss once, in double", "[classifier]") {
    const int rows = GENERATE(0, 1, 7, 8, 511, 4096, 65539);
    CAPTURE(rows);
    std::vector<float> losses = normal<float>(rows, 5, 1, 8);
    double exact = 1.0 / 3;
    auto total = on_device(std::vector<double>{exact});
    for (const float x : losses) exact += x;
    const auto device_losses = on_device(losses);
    accumulate_losses(total.span(), device_losses.span(), nullptr);
    // float sums would have a relative error of 1e-6
    CHECK(std::fabs(total.download(nullptr)[0] - exact) <= rows * 0x1p-53 * std::fabs(exact));
}
