// sampler_test.cpp - the frequencies of sampled tokens, and which are never sampled
#include <cmath>
#include <limits>
#include <set>

#include "kernels/base/error.h"
#include "llmc/run/evaluation/generation.h"
#include "test/support/catch.h"

using namespace llmc;

TEST_CASE("tokens are sampled with their probabilities", "[sampler]") {
    // Probabilities .5, .25, .25 of the three most likely tokens of five.
    const std::vector<float> logits{std::log(2.0f), -5.0f, 0.0f, -6.0f, 0.0f};
    const int draws = 40000;
    int count[5] = {};
    Sampler sampler(1, {.top_k = 3});
    for (int i = 0; i < draws; ++i) ++count[sampler.next(logits)];
    const auto near = [&](int found, double probability) {  // five standard deviations of a binomial count
        return std::fabs(found - draws * probability) <= 5 * std::sqrt(draws * probability * (1 - probability));
    };
    CHECK(near(count[0], 0.5));
    CHECK(near(count[2], 0.25));
    CHECK(near(count[4], 0.25));
    CHECK(count[1] + count[3] == 0);
}

TEST_CASE("no id beyond the vocabulary and no id with a NaN logit is sampled", "[sampler]") {
    std::vector<float> logits(50257, 0.0f);
    logits[3] = std::numeric_limits<float>::quiet_NaN();
    Sampler sampler(5, {.top_k = 0});
    std::set<int> seen;
    for (int i = 0; i < 40; ++i) seen.insert(sampler.next(logits));
    CHECK(*seen.begin() >= 0);
    CHECK(*seen.rbegin() < 50257);
    CHECK(seen.count(3) == 0);
    CHECK_THROWS_AS(sampler.next(std::vector<float>(4, std::numeric_limits<float>::quiet_NaN())), Error);
}

TEST_CASE("temperature 0 selects the most likely token; ties: the lowest id", "[sampler]") {
    Sampler sampler(5, {.temperature = 0});
    CHECK(sampler.next(std::vector<float>{0, 3, 3, 1}) == 1);
}

TEST_CASE("top-p keeps the smallest set of the most likely tokens with that cumulative probability", "[sampler]") {
    // .4, .3, .2 and .1, out of order.
    const std::vector<float> logits{std::log(2.0f), std::log(4.0f), std::log(1.0f), std::log(3.0f)};
    const auto drawn = [&](const Sampling& sampling) {
        Sampler sampler(3, sampling);
        std::set<int> seen;
        for (int i = 0; i < 2000; ++i) seen.insert(sampler.next(logits));
        return seen;
    };
    CHECK(drawn({.top_k = 0, .top_p = 0.01}) == std::set<int>{1});
    CHECK(drawn({.top_k = 0, .top_p = 0.39}) == std::set<int>{1});
    CHECK(drawn({.top_k = 0, .top_p = 0.41}) == std::set<int>{1, 3});
    CHECK(drawn({.top_k = 0, .top_p = 0.69}) == std::set<int>{1, 3});
    CHECK(drawn({.top_k = 0, .top_p = 0.89}) == std::set<int>{0, 1, 3});
    CHECK(drawn({.top_k = 0, .top_p = 0.91}) == std::set<int>{0, 1, 2, 3});
    // The two most likely have .57 and .43; with the lower temperature .64 and .36
    CHECK(drawn({.top_k = 2, .top_p = 0.6}) == std::set<int>{1, 3});
    CHECK(drawn({.top_k = 2, .top_p = 0.6, .temperature = 0.5}) == std::set<int>{1});
    // Ties: by id.
    Sampler sampler(3, {.top_k = 0, .top_p = 0.5});
    std::set<int> seen;
    for (int i = 0; i < 500; ++i) seen.insert(sampler.next(std::vector<float>(4, 1.0f)));
    CHECK(seen == std::set<int>{0, 1});
}

TEST_CASE("the tokens that top-p keeps are sampled in proportion to their probabilities", "[sampler]") {
    const std::vector<float> logits{0.0f, std::log(3.0f), -1.0f, -9.0f};
    const int draws = 40000;
    int first = 0;
    Sampler sampler(9, {.top_k = 0, .top_p = 0.85});  // .69, .23 and .08 before
    for (int i = 0; i < draws; ++i) first += sampler.next(logits) == 1;
    CHECK(std::fabs(first - draws * 0.75) <= 5 * std::sqrt(draws * 0.75 * 0.25));
}
