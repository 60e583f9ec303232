// classifier_test.cpp - masked, ignored and invalid rows of the fused classifier (the rest:
// operations/classifier.cpp)
#include <algorithm>
#include <cstring>
#include <bit>
#include <climits>

#include "kernels/classifier.h"
#include "kernels/device/memory.h"
#include "test/support/support.h"

using namespace kernels;
using namespace test;

namespace {

// Relative error of one exponential with an exponent of at most 16: that of fast_exp (math.cuh) on a GPU, which is
// larger than on a CPU, plus the rounding of the exponent.
constexpr double kExponentialError = (2 + 16) * 0x1p-23 + 16 * 0x1p-24;
// A term of the sum of exponentials passes through at most 64 additions in a run, 64 runs, and 32 + 32 in reductions.
constexpr double kSumError = kExponentialError + 192 * 0x1p-24;

struct RowReference {
    double loss = 0, maximum = 0;
    std::vector<double> probability;
};
template <class T> RowReference reference_row(const T* logits, int target, int vocabulary) {
    RowReference r;
    r.maximum = -INFINITY;
    for (int c = 0; c < vocabulary; ++c) r.maximum = std::max(r.maximum, widen(logits[c]));
    double sum = 0;
    for (int c = 0; c < vocabulary; ++c) sum += std::exp(widen(logits[c]) - r.maximum);
    for (int c = 0; c < vocabulary; ++c) r.probability.push_back(std::exp(widen(logits[c]) - r.maximum) / sum);
    r.loss = std::log(sum) + r.maximum - widen(logits[target]);
    return r;
}
double loss_tolerance(double loss, double maximum) {
    return kSumError + 2 * ulp<float>(std::max(std::fabs(loss), std::fabs(maximum)));
}

// Logits whose padded columns are NaN, and random targets.
template <class T> struct Case {
    int rows, vocabulary, padded;
    float scale = 1.0f / 37;
    std::vector<T> logits;
    std::vector<int> targets;
    std::vector<float> losses;
    std::vector<T> after;  // `logits` after the operation

    Case(int rows, int vocabulary, int padded, double mean = 0) : rows(rows), vocabulary(vocabulary), padded(padded) {
        logits = normal<T>(std::size_t(rows) * padded, unsigned(rows * 7919 + vocabulary), 2, mean);
        std::mt19937 engine(vocabulary);
        for (int row = 0; row < rows; ++row) {
            targets.push_back(int(engine() % unsigned(vocabulary)));
            for (int c = vocabulary; c < padded; ++c) at(row, c) = narrow<T>(NAN);
        }
        targets[0] = vocabulary - 1;
        targets[rows / 2] = rows > 1 ? 0 : vocabulary - 1;
    }
    T& at(int row, int column) { return logits[std::size_t(row) * padded + column]; }
    T after_at(int row, int column) const { return after[std::size_t(row) * padded + column]; }
    void run(bool write_dlogits = true) {
        auto device_logits = on_device(logits);
        auto device_losses = poisoned<float>(rows);
        const auto device_targets = on_device(targets);
        classifier<T>({device_logits.span(), device_losses.span(), device_targets.span(), rows, vocabulary, padded,
                       scale, write_dlogits},
                      nullptr);
        losses = device_losses.download(nullptr);
        after = device_logits.download(nullptr);
    }
};

template <class T> bool is_plus_zero(T x) {
    const T zero{};
    return std::memcmp(&x, &zero, sizeof(T)) == 0;
}
template <class T> void check_row(const Case<T>& c, int row) {
    const auto want = reference_row(&c.logits[std::size_t(row) * c.padded], c.targets[row], c.vocabulary);
    CAPTURE(row, want.loss, c.losses[row]);
    CHECK(std::fabs(c.losses[row] - want.loss) <= loss_tolerance(want.loss, want.maximum));
    double sum = 0, sum_tolerance = 0;
    int wrong = 0, first_wrong = -1;
    for (int column = 0; column < c.vocabulary; ++column) {
        const double p = want.probability[column], gradient = c.scale * (p - (column == c.targets[row]));
        const double tolerance = c.scale * (p * (kSumError + kExponentialError) + 3 * 0x1p-24) +
                                 0.51 * ulp<T>(gradient);
        const double got = widen(c.after_at(row, column));
        if (!(std::fabs(got - gradient) <= tolerance) && wrong++ == 0) first_wrong = column;
        sum += got;
        sum_tolerance += c.scale * p * (kSumError + kExponentialError) + 0.51 * ulp<T>(gradient);
    }
    CAPTURE(first_wrong);
    CHECK(wrong == 0);
    CHECK(std::fabs(sum) <= sum_tolerance + 3 * 0x1p-24 * c.scale);
    int not_zero = 0;
    for (int column = c.vocabulary; column < c.padded; ++column) not_zero += !is_plus_zero(c.after_at(row, column));
    CHECK(not_zero == 0);
}

}  // namespace

TEMPLATE_TEST_CASE("classifier finds the maximum at any position", "[classifier]", float, bf16) {
    constexpr int kVocabulary = 50257, kPadded = 50304;
    const int where = GENERATE(0, 1, 4095, 8192, 50255, 50256);
    CAPTURE(where);
    Case<TestType> c(1, kVocabulary, kPadded);
    // masked logits add nothing
    for (int column = 0; column < kVocabulary; column += 3) c.at(0, column) = narrow<TestType>(-INFINITY);
    // nor do whole runs of them
    for (int column = 0; column < 4200; ++column) c.at(0, column) = narrow<TestType>(-INFINITY);
    c.at(0, where) = narrow<TestType>(11.0);
    c.targets[0] = where;
    c.run();
    check_row(c, 0);
}

TEMPLATE_TEST_CASE("an ignored row has no loss and no gradient, for any contents", "[classifier]", float, bf16) {
    Case<TestType> c(5, 257, 384);
    c.targets[1] = c.targets[4] = kIgnoreTarget;
    for (int column = 0; column < c.padded; ++column) {
        c.at(1, column) = narrow<TestType>(NAN);
        c.at(4, column) = narrow<TestType>(column % 2 ? -INFINITY : INFINITY);
    }
    c.run();
    for (const int row : {1, 4}) {
        CHECK(is_plus_zero(c.losses[row]));
        int not_zero = 0;
        for (int column = 0; column < c.padded; ++column) not_zero += !is_plus_zero(c.after_at(row, column));
        CHECK(not_zero == 0);
    }
    for (const int row : {0, 2, 3}) check_row(c, row);
}

TEMPLATE_TEST_CASE("without write_dlogits the logits do not change and the losses are the same", "[classifier]",
                   float, bf16) {
    Case<TestType> c(5, 257, 384);
    c.targets[3] = kIgnoreTarget;
    c.run(true);
    const auto losses = c.losses;
    c.run(false);
    CHECK(same_bits(c.after, c.logits));
    CHECK(same_bits(c.losses, losses));
}

TEST_CASE("a target outside the vocabulary and a non-finite logit give NaN", "[classifier]") {
    Case<float> c(7, 257, 384);
    c.targets = {257, 383, -2, -100, INT_MAX, 5, 6};
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

    for (float& x : losses) x = std::round(x * 1024) / 1024;  // sums of these are exact in any order
    exact = 0;
    for (const float x : losses) exact += 2.0 * x;
    auto twice = on_device(std::vector<double>{0.0});
    const auto rounded = on_device(losses);
    accumulate_losses(twice.span(), rounded.span(), nullptr);
    accumulate_losses(twice.span(), rounded.span(), nullptr);
    CHECK(twice.download(nullptr)[0] == exact);
}
