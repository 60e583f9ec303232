// text_tokens_test.cpp - how frequent the ids of benchmarks and random shards are, and what predicts them
#include <cmath>
#include <map>

#include "test/operations/text_tokens.h"
#include "test/support/support.h"

namespace {

using operations::kGpt2Vocabulary;
using operations::TextTokens;

template <class Key>
double entropy(const std::map<Key, int>& counts, int all) {
    double nats = 0;
    for (const auto& [key, count] : counts) nats -= double(count) / all * std::log(double(count) / all);
    return nats;
}

}  // namespace

TEST_CASE("ids are as frequent as in text, and spread over the vocabulary", "[statistics][text_tokens]") {
    constexpr int kCount = 2'000'000;
    TextTokens text(kGpt2Vocabulary);
    std::map<int, int> counts;
    for (int i = 0; i < kCount; ++i) ++counts[text.next()];
    std::vector<std::pair<int, int>> ranked;
    for (const auto& [id, count] : counts) ranked.emplace_back(count, id);
    std::sort(ranked.rbegin(), ranked.rend());
    CHECK(ranked[0].first / double(kCount) == Approx(0.0451).epsilon(0.02));
    CHECK(ranked[9].first / double(kCount) == Approx(0.0451 * 2.15 / 11.15).epsilon(0.05));
    CHECK(ranked.size() > 40000);
    int low = 0;  // of the hundred most frequent ids
    for (int i = 0; i < 100; ++i) low += ranked[std::size_t(i)].second < kGpt2Vocabulary / 2;
    CHECK((low > 25 && low < 75));
    CHECK(entropy(counts, kCount) == Approx(8.00).margin(0.03));
}

TEST_CASE("half of the ids follow from the one before", "[statistics][text_tokens]") {
    constexpr int kCount = 2'000'000, kVocabulary = 257;  // few enough to count pairs
    TextTokens text(kVocabulary);
    std::map<int, int> counts;
    std::map<std::pair<int, int>, int> pairs;
    for (int i = 0, last = 0; i < kCount; ++i) {
        const int id = text.next_after(last);
        ++counts[id];
        ++pairs[{last, id}];
        last = id;
    }
    CHECK(entropy(pairs, kCount) - entropy(counts, kCount) < entropy(counts, kCount) - 1);
    std::map<int, int> favourite;
    for (const auto& [pair, count] : pairs) favourite[pair.first] = std::max(favourite[pair.first], count);
    for (const auto& [id, count] : counts)
        if (count > 10000) CHECK(favourite[id] / double(count) == Approx(0.52).margin(0.04));
}

TEST_CASE("the ids of a seed are the same on every machine", "[text_tokens]") {
    TextTokens text(kGpt2Vocabulary);
    std::vector<int> ids;
    for (int i = 0, last = 0; i < 6; ++i) ids.push_back(last = text.next_after(last));
    CHECK(ids == std::vector<int>{14018, 1561, 27373, 49340, 9209, 44796});
}
