// embedding_test.cpp - token and position embedding against fp64, their gradients, and the buckets that the gradient works by
#include <omp.h>

#include <map>

#include "kernels/embedding.h"
#include "test/support.h"

using kernels::bf16;

namespace {

struct Shape {
    int batch, seq_len, channels, vocabulary, max_seq_len;
};

// Half of the tokens are 3 (or 0), as spaces are among bytes: one bucket much larger than the others.
std::vector<int> random_tokens(std::size_t size, int vocabulary) {
    std::mt19937 engine(9);
    std::vector<int> tokens;
    for (std::size_t i = 0; i < size; ++i) tokens.push_back(engine() % 2 ? std::min(3, vocabulary - 1) : int(engine() % unsigned(vocabulary)));
    return tokens;
}

template <class T>
struct Gradients {
    Shape shape;
    std::vector<int> tokens;
    std::vector<T> dout;
    std::vector<float> token_before, position_before;

    explicit Gradients(const Shape& s)
        : shape(s), tokens(random_tokens(std::size_t(s.batch) * s.seq_len, s.vocabulary)), dout(test::normal<T>(tokens.size() * s.channels, 1)),
          token_before(test::normal<float>(std::size_t(s.vocabulary) * s.channels, 2)),
          position_before(test::normal<float>(std::size_t(s.max_seq_len) * s.channels, 3)) {}

    struct Tables { std::vector<float> token, position; bool operator==(const Tables&) const = default; };
    Tables run(bool accumulate_positions) const {
        const auto buckets = kernels::bucket_rows_by_token(tokens, shape.vocabulary);
        const auto token = test::on_device(buckets.token), start = test::on_device(buckets.start), row = test::on_device(buckets.row);
        const auto d = test::on_device(dout);
        const auto dtoken = test::on_device(token_before);
        const auto dposition = accumulate_positions ? test::on_device(position_before) : test::poisoned<float>(position_before.size());
        kernels::embedding_backward<T>({dtoken.span(), dposition.span(), d.span(), token.span(), start.span(), row.span(), shape.batch, shape.seq_len,
                                        shape.channels, shape.max_seq_len, accumulate_positions}, nullptr);
        return {dtoken.download(nullptr), dposition.download(nullptr)};
    }

    // Row after row, in Number; with what was there before.
    template <class Number> std::pair<std::vector<double>, std::vector<double>> reference(bool accumulate_positions) const {
        std::vector<Number> token(token_before.begin(), token_before.end()), position(position_before.size());
        if (accumulate_positions) position.assign(position_before.begin(), position_before.end());
        for (std::size_t row = 0; row < tokens.size(); ++row)
            for (int c = 0; c < shape.channels; ++c) {
                const Number d = Number(test::widen(dout[row * shape.channels + c]));
                token[std::size_t(tokens[row]) * shape.channels + c] += d;
                position[row % shape.seq_len * shape.channels + c] += d;
            }
        return {{token.begin(), token.end()}, {position.begin(), position.end()}};
    }
};

// Twice what a plain float loop loses, and one last rounding.
double bound(const std::vector<double>& want, const std::vector<double>& rounded) {
    double lost = 0;
    for (std::size_t i = 0; i < want.size(); ++i) lost = std::max(lost, std::fabs(rounded[i] - want[i]));
    return 2 * lost + test::ulp<float>(test::largest_magnitude(want));
}

}  // namespace

TEMPLATE_TEST_CASE("embedding_forward adds token and position", "[embedding]", float, bf16) {
    const auto s = GENERATE(Shape{1, 1, 16, 1, 1}, Shape{2, 3, 48, 5, 4}, Shape{3, 37, 80, 257, 64}, Shape{2, 5, 768, 50, 5});
    CAPTURE(s.batch, s.seq_len, s.channels);
    const auto tokens = random_tokens(std::size_t(s.batch) * s.seq_len, s.vocabulary);
    const auto token_table = test::normal<TestType>(std::size_t(s.vocabulary) * s.channels, 1);
    const auto position_table = test::normal<TestType>(std::size_t(s.max_seq_len) * s.channels, 2);
    const auto device_tokens = test::on_device(tokens);
    const auto device_token_table = test::on_device(token_table), device_position_table = test::on_device(position_table);
    const auto out = test::poisoned<TestType>(tokens.size() * s.channels);
    kernels::embedding_forward<TestType>({out.span(), device_tokens.span(), device_token_table.span(), device_position_table.span(), s.batch,
                                          s.seq_len, s.channels}, nullptr);
    const auto got = out.download(nullptr);
    std::size_t wrong = 0;
    for (std::size_t row = 0; row < tokens.size(); ++row)
        for (int c = 0; c < s.channels; ++c) {
            const double want = test::widen(token_table[std::size_t(tokens[row]) * s.channels + c]) +
                                test::widen(position_table[row % s.seq_len * s.channels + c]);
            wrong += test::widen(got[row * s.channels + c]) != test::widen(test::narrow<TestType>(want));  // one rounding: exact
        }
    CHECK(wrong == 0);
}

TEMPLATE_TEST_CASE("embedding_backward equals fp64", "[embedding]", float, bf16) {
    // One row; tails; mostly buckets of one row; few huge buckets, with a slice that is not full; GPT-2's width.
    const auto s = GENERATE(Shape{1, 1, 16, 1, 1}, Shape{2, 3, 48, 5, 4}, Shape{3, 37, 80, 5000, 64}, Shape{5, 301, 80, 7, 301},
                            Shape{2, 33, 768, 257, 40});
    const bool accumulate = GENERATE(false, true);
    CAPTURE(s.batch, s.seq_len, s.channels, s.vocabulary, accumulate);
    const Gradients<TestType> c(s);
    const auto got = c.run(accumulate);
    const auto [token, position] = c.template reference<double>(accumulate);
    const auto [rounded_token, rounded_position] = c.template reference<float>(accumulate);
    CHECK(test::largest_error(got.token, token) <= bound(token, rounded_token));
    CHECK(test::largest_error(got.position, position) <= bound(position, rounded_position));

    std::vector<bool> occurs(s.vocabulary, false);
    for (const int t : c.tokens) occurs[t] = true;
    bool untouched = true;  // no token there: not a bit changes
    for (std::size_t i = 0; i < got.token.size(); ++i) untouched &= occurs[i / s.channels] || got.token[i] == c.token_before[i];
    for (std::size_t i = std::size_t(s.seq_len) * s.channels; i < got.position.size(); ++i)
        untouched &= got.position[i] == (accumulate ? c.position_before[i] : 0.0f);
    CHECK(untouched);
}

TEMPLATE_TEST_CASE("embedding_backward repeats bit for bit, on any number of threads", "[embedding]", float, bf16) {
    const Gradients<TestType> c(GENERATE(Shape{3, 37, 80, 5000, 64}, Shape{5, 101, 96, 5, 101}));
    CHECK(test::repeats_on_any_threads([&] { return c.run(true); }));
}

TEST_CASE("buckets hold each row once, under its token, in order", "[embedding]") {
    const int vocabulary = GENERATE(1, 7, 5000);
    const auto tokens = random_tokens(GENERATE(0, 1, 999), vocabulary);
    const auto buckets = kernels::bucket_rows_by_token(tokens, vocabulary);
    std::map<int, std::vector<int>> want;
    for (std::size_t row = 0; row < tokens.size(); ++row) want[tokens[row]].push_back(int(row));
    REQUIRE(buckets.token.size() == want.size());
    REQUIRE(buckets.start.size() == want.size() + 1);
    REQUIRE(buckets.row.size() == tokens.size());
    std::size_t i = 0;
    for (const auto& [token, rows] : want) {
        CHECK(buckets.token[i] == token);
        CHECK(std::vector<int>(buckets.row.begin() + buckets.start[i], buckets.row.begin() + buckets.start[i + 1]) == rows);
        ++i;
    }
    CHECK(buckets.start.back() == int(tokens.size()));
}

TEST_CASE("embedding refuses what it cannot do", "[embedding]") {
    const std::vector<int> high{0, 7}, negative{-1};
    CHECK_THROWS_WITH(kernels::bucket_rows_by_token(high, 7), Catch::Contains("a token id is 7"));
    CHECK_THROWS_WITH(kernels::bucket_rows_by_token(negative, 7), Catch::Contains("a token id is -1"));

    const llmc::DeviceArray<float> array(1024);
    const llmc::DeviceArray<int> numbers(64);
    const auto all = array.span(), few = all.first(8);
    const auto ints = numbers.span();
    const auto forward = [&](auto change) {
        kernels::EmbeddingForward<float> op{all, ints, all, all, 2, 4, 32};
        change(op);
        kernels::embedding_forward<float>(op, nullptr);
    };
    CHECK_THROWS_WITH(forward([](auto& op) { op.channels = 18; }), Catch::Contains("channels of an embedding is 18"));
    CHECK_THROWS_WITH(forward([](auto& op) { op.batch = 0; }), Catch::Contains("batch of an embedding is 0"));
    CHECK_THROWS_WITH(forward([](auto& op) { op.seq_len = 0; }), Catch::Contains("sequence length of an embedding is 0"));
    CHECK_THROWS_WITH(forward([&](auto& op) { op.out = few; }), Catch::Contains("output is 8"));
    CHECK_THROWS_WITH(forward([&](auto& op) { op.tokens = ints.first(7); }), Catch::Contains("tokens is 7"));
    CHECK_THROWS_WITH(forward([&](auto& op) { op.position_table = few; }), Catch::Contains("position table is 8"));
    CHECK_THROWS_WITH(forward([&](auto& op) { op.token_table = few; }), Catch::Contains("token table is 8"));

    const auto backward = [&](auto change) {
        kernels::EmbeddingBackward<float> op{all, all, all, ints.first(3), ints.first(4), ints.first(8), 2, 4, 32, 8, false};
        change(op);
        kernels::embedding_backward<float>(op, nullptr);
    };
    CHECK_THROWS_WITH(backward([](auto& op) { op.channels = 18; }), Catch::Contains("channels of an embedding is 18"));
    CHECK_THROWS_WITH(backward([](auto& op) { op.max_seq_len = 3; }), Catch::Contains("sequence length of an embedding is 4"));
    CHECK_THROWS_WITH(backward([&](auto& op) { op.dout = few; }), Catch::Contains("dout is 8"));
    CHECK_THROWS_WITH(backward([&](auto& op) { op.bucket_start = ints.first(3); }), Catch::Contains("bucket starts is 3"));
    CHECK_THROWS_WITH(backward([&](auto& op) { op.bucket_row = ints.first(7); }), Catch::Contains("bucketed rows is 7"));
    CHECK_THROWS_WITH(backward([&](auto& op) { op.dtoken_table = few; }), Catch::Contains("token table's gradient is 8"));
    CHECK_THROWS_WITH(backward([&](auto& op) { op.dposition_table = few; }), Catch::Contains("position table's gradient is 8"));
}
