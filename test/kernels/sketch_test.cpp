// sketch_test.cpp - statistics of norms over random signs (the sketch compared with its definition:
// operations/sketch.cpp)
#include "kernels/sketch.h"

#include "kernels/device/memory.h"
#include "test/support/support.h"

using namespace test;
using kernels::kSketchColumns;

namespace {

std::vector<float> sketch_of(const std::vector<float>& values, std::uint32_t draw) {
    const auto in = on_device(values);
    const auto out = poisoned<float>(kSketchColumns), scratch = poisoned<float>(kernels::sketch_scratch());
    kernels::sketch({out.span(), scratch.span(), in.span(), 1.0f, draw}, nullptr);
    return out.download(nullptr);
}

double squared_norm(const std::vector<float>& values) {
    double sum = 0;
    for (float x : values) sum += double(x) * x;
    return sum;
}

}  // namespace

TEST_CASE("every draw has new signs", "[sketch][one_order]") {
    const auto values = normal<float>(3 * kSketchColumns, 1);
    const auto one = sketch_of(values, 9), other = sketch_of(values, 10);
    int equal = 0;
    for (int j = 0; j < kSketchColumns; ++j) equal += one[j] == other[j];
    // The signs of all three terms of a column are unchanged with probability 1/8; allow 5 standard deviations.
    CHECK(std::abs(equal - kSketchColumns / 8) < 5 * std::sqrt(kSketchColumns * 7 / 64.0));
}

TEST_CASE("sketches estimate the norm of the mean gradient and of its signal",
          "[sketch][statistics][one_order][large]") {
    constexpr int kRanks = 8, kDraws = 100, kSize = 1 << 16;
    std::vector<std::vector<float>> gradients;
    std::vector<double> mean(kSize);
    const auto signal = normal<float>(kSize, 99);
    double mean_of_norms = 0;
    for (int rank = 0; rank < kRanks; ++rank) {
        auto gradient = normal<float>(kSize, 100 + unsigned(rank), 4.0);  // 16 times the signal's power
        for (int i = 0; i < kSize; ++i) {
            gradient[i] += signal[i];
            mean[i] += gradient[i] / kRanks;
        }
        mean_of_norms += squared_norm(gradient) / kRanks;
        gradients.push_back(std::move(gradient));
    }
    double norm = 0;
    for (double x : mean) norm += x * x;
    const double unbiased = (kRanks * norm - mean_of_norms) / (kRanks - 1);  // |G|^2 from the gradients themselves

    double norm_ratio = 0, signal_ratio = 0;
    for (int draw = 0; draw < kDraws; ++draw) {
        std::vector<double> mean_sketch(kSketchColumns);
        double mean_of_sketch_norms = 0;
        for (const auto& gradient : gradients) {
            const auto sketch = sketch_of(gradient, unsigned(draw));
            for (int j = 0; j < kSketchColumns; ++j) mean_sketch[j] += sketch[j] / kRanks;
            mean_of_sketch_norms += squared_norm(sketch) / kRanks;
        }
        double sketch_norm = 0;
        for (double x : mean_sketch) sketch_norm += x * x;
        norm_ratio += sketch_norm / norm / kDraws;
        signal_ratio += (kRanks * sketch_norm - mean_of_sketch_norms) / (kRanks - 1) / unbiased / kDraws;
    }
    CHECK(norm_ratio == Approx(1).epsilon(0).margin(0.01));
    CHECK(signal_ratio == Approx(1).epsilon(0).margin(0.015));
}
