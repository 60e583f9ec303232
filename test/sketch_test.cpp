// sketch_test.cpp - the sketch of a gradient against its definition, and what the signs' chance leaves of norms
#include "kernels/sketch.h"

#include "test/support.h"

using namespace test;
using kernels::kSketchBuckets;

namespace {

std::vector<float> sketch_of(const std::vector<float>& values, std::uint32_t draw, float scale = 1) {
    const auto in = on_device(values);
    const auto out = poisoned<float>(kSketchBuckets), scratch = poisoned<float>(kernels::sketch_scratch());
    kernels::sketch({out.span(), scratch.span(), in.span(), scale, draw}, nullptr);
    return out.download(nullptr);
}

double squared_norm(const std::vector<float>& values) {
    double sum = 0;
    for (float x : values) sum += double(x) * x;
    return sum;
}

}  // namespace

TEST_CASE("every value enters the bucket of its index, with a sign", "[sketch]") {
    const std::size_t size = GENERATE(0, 1, 64, kSketchBuckets - 1, kSketchBuckets, kSketchBuckets + 70, 33 * kSketchBuckets + 5);
    // One value at a time is 1, so the sign shows; then all of them at once are the signs' sums.
    std::vector<float> values(size, 1.0f);
    const auto all = sketch_of(values, 4);
    std::vector<int> count(kSketchBuckets);
    for (std::size_t i = 0; i < size; ++i) ++count[i % kSketchBuckets];
    int wrong = 0;
    for (int j = 0; j < kSketchBuckets; ++j) wrong += std::fabs(all[j]) > count[j] || int(all[j] + count[j]) % 2 != 0;
    CHECK(wrong == 0);
    for (std::size_t i : {std::size_t(0), size / 2, size - 1}) {
        if (i >= size) continue;
        values.assign(size, 0.0f);
        values[i] = 3.0f;
        const auto one = sketch_of(values, 4, 0.5f);
        CHECK(std::fabs(one[i % kSketchBuckets]) == 1.5f);
        CHECK(squared_norm(one) == 2.25);
    }
}

TEST_CASE("the sketch is linear and has new signs in every draw", "[sketch]") {
    const auto a = normal<float>(3 * kSketchBuckets, 1), b = normal<float>(3 * kSketchBuckets, 2);
    std::vector<float> sum(a.size());
    for (std::size_t i = 0; i < a.size(); ++i) sum[i] = a[i] + b[i];
    const auto of_a = sketch_of(a, 9), of_b = sketch_of(b, 9), of_sum = sketch_of(sum, 9), other = sketch_of(a, 10);
    int equal = 0;
    for (int j = 0; j < kSketchBuckets; ++j) {
        CHECK(of_sum[j] == Approx(of_a[j] + of_b[j]).epsilon(0).margin(1e-5));  // three terms of a size of 1 a bucket, rounded
        equal += of_a[j] == other[j];
    }
    // The signs of all three terms of a bucket stay as they were with a chance of 1/8; within 5 standard deviations of that.
    CHECK(std::abs(equal - kSketchBuckets / 8) < 5 * std::sqrt(kSketchBuckets * 7 / 64.0));
    CHECK(repeats_on_any_threads([&] { return sketch_of(a, 9); }));
}

TEST_CASE("sketches tell the norm of the mean gradient and of the signal in it", "[sketch_statistics]") {
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
        std::vector<double> mean_sketch(kSketchBuckets);
        double mean_of_sketch_norms = 0;
        for (const auto& gradient : gradients) {
            const auto sketch = sketch_of(gradient, unsigned(draw), 1.0f);
            for (int j = 0; j < kSketchBuckets; ++j) mean_sketch[j] += sketch[j] / kRanks;
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

TEST_CASE("a sketch refuses what is too short", "[sketch]") {
    const DeviceArray<float> values(10), out(kSketchBuckets), short_out(kSketchBuckets - 1), scratch(kernels::sketch_scratch());
    CHECK_THROWS_AS(kernels::sketch({short_out.span(), scratch.span(), values.span(), 1, 0}, nullptr), Error);
    CHECK_THROWS_AS(kernels::sketch({out.span(), scratch.span().first(scratch.size() - 1), values.span(), 1, 0}, nullptr), Error);
}
