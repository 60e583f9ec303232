// embedding_test.cpp - the token buckets of the embedding gradient, and rejected inputs (the rest:
// operations/embedding.cpp)
#include <map>

#include "kernels/device/memory.h"
#include "kernels/embedding.h"
#include "test/support/scratch_folder.h"
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

    using std::pair;
    const device::Array<float> array(1024);
    const device::Array<int> numbers(64);
    const auto all = array.span();
    const auto ints = numbers.span();
    using Forward = kernels::EmbeddingForward<float>;
    const auto forward = [](const Forward& op) { kernels::embedding_forward<float>(op, nullptr); };
    const Forward op{all, ints, all, all, 2, 4, 32};
    test::check_sizes(op, forward, pair("output", &Forward::out), pair("tokens", &Forward::tokens),
                      pair("position table", &Forward::position_table), pair("token table", &Forward::token_table));
    for (const auto& [number, said] : {pair(&Forward::channels, "channels of an embedding is "),
                                       {&Forward::batch, "batch of an embedding is "},
                                       {&Forward::seq_len, "sequence length of an embedding is "}}) {
        auto changed = op;
        changed.*number = number == &Forward::channels ? 18 : 0;
        CHECK_THROWS_WITH(forward(changed), test::Contains(said + std::to_string(changed.*number)));
    }

    using Backward = kernels::EmbeddingBackward<float>;
    const auto backward = [](const Backward& op) { kernels::embedding_backward<float>(op, nullptr); };
    const Backward back{all, all, all, {ints.first(3), ints.first(4), ints.first(8)}, 2, 4, 32, 8, false};
    test::check_sizes(back, backward, pair("dout", &Backward::dout),
                      pair("token table's gradient", &Backward::dtoken_table),
                      pair("position table's gradient", &Backward::dposition_table));
    const auto refusal = [&](auto change) {
        Backward changed = back;
        change(changed);
        return test::error_of([&] { backward(changed); });
    };
    CHECK_THAT(refusal([](auto& op) { op.channels = 18; }), test::Contains("channels of an embedding is 18"));
    CHECK_THAT(refusal([](auto& op) { op.max_seq_len = 3; }), test::Contains("sequence length of an embedding is 4"));
    CHECK_THAT(refusal([&](auto& op) { op.sorted.start = ints.first(3); }),
               test::Contains("starts of sorted rows is 3"));
    CHECK_THAT(refusal([&](auto& op) { op.sorted.row = ints.first(7); }), test::Contains("sorted rows is 7"));
}
