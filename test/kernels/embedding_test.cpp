// embedding_test.cpp - the token buckets of the embedding gradient, and where documents begin (the rest:
// operations/embedding.cpp)
#include <map>

#include "kernels/documents.h"
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

TEST_CASE("sorting by token keeps each row once, under its token, in order, frequent tokens first and in chunks",
          "[embedding]") {
    const int vocabulary = GENERATE(1, 2, 7, 5000), most = kernels::rows_per_chunk();
    const auto tokens = random_tokens(GENERATE(0, 1, 64, 65, 128, 999), vocabulary);
    const auto sorted = kernels::rows_by_token(tokens, vocabulary);
    std::map<std::pair<bool, int>, std::vector<int>> want;  // by whether the token is rare
    for (std::size_t row = 0; row < tokens.size(); ++row)
        want[std::pair(std::ranges::count(tokens, tokens[row]) <= most, tokens[row])].push_back(int(row));
    REQUIRE(sorted.row.size() == tokens.size());
    std::size_t i = 0;
    for (const auto& [key, rows] : want)
        for (std::size_t first = 0; first < rows.size(); first += std::size_t(most), ++i) {
            REQUIRE(i < sorted.token.size());
            CHECK(sorted.token[i] == key.second);
            CHECK((int(i) < sorted.chunks) == !key.first);
            CHECK(std::vector<int>(sorted.row.begin() + sorted.start[i], sorted.row.begin() + sorted.start[i + 1]) ==
                  std::vector<int>(rows.begin() + long(first),
                                   rows.begin() + long(std::min(rows.size(), first + std::size_t(most)))));
        }
    CHECK(sorted.token.size() == i);
    REQUIRE(sorted.start.size() == i + 1);
    CHECK(sorted.start.back() == int(tokens.size()));
}

TEST_CASE("an end of text starts a document, and a row its first one", "[embedding][documents]") {
    constexpr int kEnd = 9;
    const std::vector<int> tokens{5, kEnd, 7, 8, kEnd, kEnd, 3, 4, /* the next row */ 1, 2, kEnd, 3, 4, 5, 6, kEnd};
    CHECK(kernels::document_starts(tokens, 8, kEnd) ==
          std::vector<int>{0, 1, 1, 1, 4, 5, 5, 5, 0, 0, 2, 2, 2, 2, 2, 7});
}
