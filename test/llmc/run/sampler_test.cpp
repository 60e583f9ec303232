// sampler_test.cpp - how often tokens are drawn, and which never
#include <catch2/catch.hpp>

#include <cmath>
#include <limits>
#include <set>

#include "kernels/device/error.h"
#include "llmc/run/sampler.h"

using namespace llmc;

TEST_CASE("samples occur as often as their probability says", "[sampler]") {
    // Probabilities .5, .25, .25 of the three likeliest of five.
    const std::vector<float> logits{std::log(2.0f), -5.0f, 0.0f, -6.0f, 0.0f};
    const int draws = 40000;
    int count[5] = {};
    Sampler sampler(1, 3, 1.0);
    for (int i = 0; i < draws; ++i) ++count[sampler.next(logits)];
    const auto near = [&](int found, double probability) {  // five standard deviations of a binomial count
        return std::fabs(found - draws * probability) <= 5 * std::sqrt(draws * probability * (1 - probability));
    };
    CHECK(near(count[0], 0.5));
    CHECK(near(count[2], 0.25));
    CHECK(near(count[4], 0.25));
    CHECK(count[1] + count[3] == 0);
}

TEST_CASE("temperature sharpens and flattens", "[sampler]") {
    const std::vector<float> logits{1.0f, 0.0f};
    const double temperature = GENERATE(0.5, 1.0, 2.0);
    const int draws = 40000;
    int first = 0;
    Sampler sampler(7, 0, temperature);
    for (int i = 0; i < draws; ++i) first += sampler.next(logits) == 0;
    const double probability = 1 / (1 + std::exp(-1 / temperature));
    CHECK(std::fabs(first - draws * probability) <= 5 * std::sqrt(draws * probability * (1 - probability)));
}

TEST_CASE("the same seed draws the same tokens, another one others", "[sampler]") {
    const std::vector<float> logits(300, 0.0f);
    const auto draw = [&](std::uint64_t seed) {
        Sampler sampler(seed, 0, 1.0);
        std::vector<int> ids;
        for (int i = 0; i < 50; ++i) ids.push_back(sampler.next(logits));
        return ids;
    };
    CHECK(draw(42) == draw(42));
    CHECK(draw(42) != draw(43));
}

TEST_CASE("no id at or past the vocabulary is drawn, nor one whose logit is not a number", "[sampler]") {
    std::vector<float> logits(50257, 0.0f);
    logits[3] = std::numeric_limits<float>::quiet_NaN();
    Sampler sampler(5, 0, 1.0);
    std::set<int> seen;
    for (int i = 0; i < 40; ++i) seen.insert(sampler.next(logits));
    CHECK(*seen.begin() >= 0);
    CHECK(*seen.rbegin() < 50257);
    CHECK(seen.count(3) == 0);
    CHECK_THROWS_AS(sampler.next(std::vector<float>(4, std::numeric_limits<float>::quiet_NaN())), Error);
}

TEST_CASE("temperature 0 takes the likeliest, the lowest id among equals", "[sampler]") {
    Sampler sampler(5, 50, 0);
    CHECK(sampler.next(std::vector<float>{0, 3, 3, 1}) == 1);
}

TEST_CASE("a sample stops at its length or at the end of text, and sees no more than the model can", "[sampler]") {
    Sampler sampler(1, 1, 1.0);
    std::size_t longest_seen = 0;
    const auto counting = [&](std::span<const int> seen) {  // the likeliest token is the last one plus one
        longest_seen = std::max(longest_seen, seen.size());
        std::vector<float> logits(100, 0.0f);
        logits[std::size_t(seen.back()) + 1] = 9;
        return logits;
    };
    CHECK(sample_tokens(sampler, {3}, 4, 3, 99, counting) == std::vector<int>{3, 4, 5, 6, 7});
    CHECK(longest_seen == 3);
    CHECK(sample_tokens(sampler, {3}, 40, 8, 6, counting) == std::vector<int>{3, 4, 5, 6});
    int asked = 0;
    CHECK(sample_tokens(sampler, {3}, 40, 8, 99, counting, [&] { return ++asked == 3; }) == std::vector<int>{3, 4, 5});
}
