// text_tokens_test.cpp - the ids of benchmarks and random shards
#include "test/operations/text_tokens.h"

#include "test/support/catch.h"

TEST_CASE("the ids of a seed are the same on every machine", "[text_tokens]") {
    operations::TextTokens text(operations::kGpt2Vocabulary);
    std::vector<int> ids;
    for (int i = 0, last = 0; i < 6; ++i) ids.push_back(last = text.next_after(last));
    CHECK(ids == std::vector<int>{14018, 1561, 27373, 49340, 9209, 44796});
}
