// embedding_test.cpp - the token buckets of the embedding gradient (the rest: operations/embedding.cpp)
#include <map>

#include "kernels/embedding.h"
#include "test/support/support.h"

namespace {

// Half of the tokens are 3 (or 0), like spaces in byte text: one token has many more rows than the others.
std::vector<int> random_tokens(std::size_t size, int vocabulary) {
    std::mt19937 engine(9);
    std::vector<int> tokens;
    for (std::size_t i = 0; i < size; ++i)
        tokens.push_back(engine() % 2 ? std::min(3, vocabulary - 1) : int(engine() % unsigned(vocabulary)));
    return tokens;
}

}  // namespace

TEST_CASE("sorting by token keeps each row once, under its token, in order", "[embedding]") {
    const int vocabulary = GENERATE(1, 7, 5000);
    const auto tokens = random_tokens(GENERATE(0, 1, 999), vocabulary);
    const auto sorted = kernels::rows_by_token(tokens, vocabulary);
    std::map<int, std::vector<int>> want;
    for (std::size_t row = 0; row < tokens.size(); ++row) want[tokens[row]].push_back(int(row));
    REQUIRE(sorted.token.size() == want.size());
    REQUIRE(sorted.start.size() == want.size() + 1);
    REQUIRE(sorted.row.size() == tokens.size());
    std::size_t i = 0;
    for (const auto& [token, rows] : want) {
        CHECK(sorted.token[i] == token);
        CHECK(std::vector<int>(sorted.row.begin() + sorted.start[i],
                               sorted.row.begin() + sorted.start[i + 1]) == rows);
        ++i;
    }
    CHECK(sorted.start.back() == int(tokens.size()));
}
