// noise_scale_test.cpp - the noise scale of known and of Gaussian gradients, and the accuracy of its error bars
#include "llmc/run/log/noise_scale.h"

#include <cmath>
#include <random>

#include "test/support/catch.h"

using namespace llmc;

namespace {

void check_near(double got, double want, double relative = 1e-12) {
    CHECK(got == Approx(want).epsilon(relative).margin(1e-300));
}

struct Moments {
    double sum = 0, squares = 0;
    int count = 0;
    void add(double x) { sum += x, squares += x * x, ++count; }
    double mean() const { return sum / count; }
    double deviation() const { return std::sqrt(squares / count - mean() * mean()); }
};

}  // namespace

TEST_CASE("noise scale of four micro-batches on two ranks, by every choice of small batches", "[noise_scale]") {
    // Gradients (1, 0) and (3, 0) on the first rank, (1, 2) and (3, 2) on the other; their mean is (2, 1).
    const auto by_micro_batch = measure_noise({.norms = 1 + 9 + 5 + 13, .tokens = 4, .batches = 4}, 5, 4);
    check_near(by_micro_batch.noise, 8.0 / 3);
    check_near(by_micro_batch.signal, 13.0 / 3);
    const auto by_rank = measure_noise({.norms = 16.0 / 2 + 32.0 / 2, .tokens = 4, .batches = 2}, 5, 4);
    check_near(by_rank.noise, 4);
    check_near(by_rank.signal, 4);
    const auto by_first = measure_noise({.norms = 1 + 5, .tokens = 2, .batches = 2}, 5, 4);
    check_near(by_first.noise, -8.0 / 3);
    check_near(by_first.signal, 17.0 / 3);

    NoiseScale average(0.9);
    average.add(by_micro_batch);
    check_near(average.estimate().scale, 8.0 / 13);
    CHECK(average.estimate().state == NoiseScale::State::warming);
    NoiseScale negative(0.9);
    negative.add(by_first);
    CHECK(negative.estimate().state == NoiseScale::State::invalid);
    CHECK(std::isnan(negative.estimate().scale));
    CHECK(negative.averages().count == 1);  // the averages include negative values
    check_near(negative.estimate().noise, -8.0 / 3);
}

TEST_CASE("averages of the noise scale are bias-corrected", "[noise_scale]") {
    NoiseScale average(0.9);
    const double noise[3] = {10, 20, 30}, corrected[3] = {10, 15.2631579, 20.7011070};
    for (int i = 0; i < 3; ++i) {
        average.add({noise[i] / 10, noise[i]});
        check_near(average.estimate().noise, corrected[i], 1e-8);
        check_near(average.estimate().scale, 10);
    }
    const auto before = average.averages();
    average.add({std::nan(""), 1});
    average.add({1, INFINITY});
    CHECK(average.averages().count == before.count);
    CHECK(average.averages().noise == before.noise);
    NoiseScale resumed(0.9, before);
    resumed.add({4, 40});
    average.add({4, 40});
    CHECK(resumed.estimate().noise == average.estimate().noise);
}

TEST_CASE("the error bar of the noise scale is that of repeated runs", "[noise_scale]") {
    // 400 runs of independent measurements: the deviation between runs against the deviation that each run reports,
    // late and early in a run.
    const auto [beta, measurements] = GENERATE(std::pair(0.95, 300), std::pair(0.99, 40));
    std::mt19937_64 bits(9);
    std::normal_distribution<double> normal;
    Moments scales, claimed;
    for (int run = 0; run < 400; ++run) {
        NoiseScale average(beta);
        for (int i = 0; i < measurements; ++i) {
            const double x = normal(bits), y = normal(bits);
            average.add({4 + 0.6 * x, 64 + 3 * (0.6 * x + 0.8 * y)});  // correlated
        }
        const auto estimate = average.estimate();
        CHECK(estimate.state == NoiseScale::State::ok);
        scales.add(estimate.scale);
        claimed.add(estimate.relative_deviation);
        CHECK(estimate.at_least < estimate.scale);
    }
    check_near(scales.mean(), 16, 0.01);
    // 400 runs determine their deviation to 3.5 %; each run estimates it from about 40 measurements.
    check_near(claimed.mean(), scales.deviation() / scales.mean(), 0.12);
}

TEST_CASE("states of the noise scale", "[noise_scale]") {
    NoiseScale average(0.9);
    for (int i = 0; i < 19; ++i) average.add({1 + 0.1 * (i % 2), 10});
    CHECK(name_of(average.estimate().state) == std::string("warming"));
    average.add({1.1, 10});
    CHECK(name_of(average.estimate().state) == std::string("ok"));
    NoiseScale weak(0.9);
    for (int i = 0; i < 40; ++i) weak.add({i % 2 ? 21.0 : -19.0, 10});
    CHECK(name_of(weak.estimate().state) == std::string("weak"));
    CHECK(weak.estimate().at_least < weak.estimate().scale);
    CHECK(name_of(NoiseScale().estimate().state) == std::string("invalid"));
}
