// data_mix_test.cpp - rows of several corpora by weight: their numbers after any number of rows, and their order
#include "llmc/data/data_mix.h"

#include <numeric>

#include "test/support/catch.h"

using namespace llmc;

TEST_CASE("after any number of rows of a mix, a corpus has its share of them, rounded up or down", "[data_mix]") {
    using Weights = std::vector<std::int64_t>;
    const Weights weights = GENERATE(Weights{1}, Weights{7, 3}, Weights{1, 1, 1}, Weights{1, 999}, Weights{6, 10, 15},
                                     Weights{500, 300, 111, 89, 7, 1, 1});
    const std::int64_t sum = std::accumulate(weights.begin(), weights.end(), std::int64_t(0));
    const DataMix mix(weights);
    std::vector<std::int64_t> rows(weights.size());
    for (std::int64_t r = 0; r < 3 * sum; ++r) {
        const auto [corpus, number] = mix(r);
        CAPTURE(r, corpus);
        REQUIRE(number == rows[std::size_t(corpus)]++);  // each row of each corpus, in order
        for (std::size_t i = 0; i < weights.size(); ++i) {
            const std::int64_t share = (r + 1) * weights[i];  // times sum
            REQUIRE((rows[i] >= share / sum && rows[i] <= (share + sum - 1) / sum));
            if (r % 97 == 0) REQUIRE(mix.rows_of(std::int64_t(i), r + 1) == rows[i]);
        }
    }
    CHECK_THROWS_WITH(DataMix({1'000'000, 1}), test::Contains("is above 1000000; expected at most that"));
}
