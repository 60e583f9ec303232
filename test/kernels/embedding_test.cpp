// embedding_test.cpp - the token buckets of the embedding gradient, and rejected inputs (the rest:
// operations/embedding.cpp)
#include <map>

#include "kernels/device/memory.h"
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

TEST_CASE("embedding rejects invalid inputs", "[embedding]") {
    const std::vector<int> high{0, 7}, negative{-1};
    CHECK_THROWS_WITH(kernels::rows_by_token(high, 7), test::Contains("a token id is 7"));
    CHECK_THROWS_WITH(kernels::rows_by_token(negative, 7), test::Contains("a token id is -1"));

    const device::Array<float> array(1024);
    const device::Array<int> numbers(64);
    const auto all = array.span(), few = all.first(8);
    const auto ints = numbers.span();
    const auto forward = [&](auto change) {
        kernels::EmbeddingForward<float> op{all, ints, all, all, 2, 4, 32};
        change(op);
        kernels::embedding_forward<float>(op, nullptr);
    };
    CHECK_THROWS_WITH(forward([](auto& op) { op.channels = 18; }), test::Contains("channels of an embedding is 18"));
    CHECK_THROWS_WITH(forward([](auto& op) { op.batch = 0; }), test::Contains("batch of an embedding is 0"));
    CHECK_THROWS_WITH(forward([](auto& op) { op.seq_len = 0; }),
                      test::Contains("sequence length of an embedding is 0"));
    CHECK_THROWS_WITH(forward([&](auto& op) { op.out = few; }), test::Contains("output is 8"));
    CHECK_THROWS_WITH(forward([&](auto& op) { op.tokens = ints.first(7); }), test::Contains("tokens is 7"));
    CHECK_THROWS_WITH(forward([&](auto& op) { op.position_table = few; }), test::Contains("position table is 8"));
    CHECK_THROWS_WITH(forward([&](auto& op) { op.token_table = few; }), test::Contains("token table is 8"));

    const auto backward = [&](auto change) {
        kernels::EmbeddingBackward<float> op{all, all, all, {ints.first(3), ints.first(4), ints.first(8)}, 2, 4, 32,
                                             8, false};
        change(op);
        kernels::embedding_backward<float>(op, nullptr);
    };
    CHECK_THROWS_WITH(backward([](auto& op) { op.channels = 18; }), test::Contains("channels of an embedding is 18"));
    CHECK_THROWS_WITH(backward([](auto& op) { op.max_seq_len = 3; }),
                      test::Contains("sequence length of an embedding is 4"));
    CHECK_THROWS_WITH(backward([&](auto& op) { op.dout = few; }), test::Contains("dout is 8"));
    CHECK_THROWS_WITH(backward([&](auto& op) { op.sorted.start = ints.first(3); }),
                      test::Contains("starts of sorted rows is 3"));
    CHECK_THROWS_WITH(backward([&](auto& op) { op.sorted.row = ints.first(7); }),
                      test::Contains("sorted rows is 7"));
    CHECK_THROWS_WITH(backward([&](auto& op) { op.dtoken_table = few; }),
                      test::Contains("token table's gradient is 8"));
    CHECK_THROWS_WITH(backward([&](auto& op) { op.dposition_table = few; }),
                      test::Contains("position table's gradient is 8"));
}
