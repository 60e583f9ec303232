// embedding.cpp - token plus position embedding and its gradient
#include "kernels/embedding.h"

#include "test/operations/operation.h"
#include "test/operations/text_tokens.h"

namespace operations::embedding_operation {
namespace {

// GPT-2's ids have the frequencies of text. With smaller vocabularies half of the tokens are 3 (or 0), like spaces in
// byte text: one token has many more rows than the others.
std::vector<double> random_tokens(std::size_t size, int vocabulary) {
    std::mt19937 engine(9);
    std::vector<double> tokens;
    if (vocabulary >= kGpt2Vocabulary) {
        TextTokens text(vocabulary);
        for (std::size_t i = 0; i < size; ++i) tokens.push_back(text.next());
        return tokens;
    }
    for (std::size_t i = 0; i < size; ++i)
        tokens.push_back(engine() % 2 ? std::min(3, vocabulary - 1) : int(engine() % unsigned(vocabulary)));
    return tokens;
}

struct EmbeddingSizes {
    int batch, seq_len, channels, vocabulary, max_seq_len;
    explicit EmbeddingSizes(const Shape& s)
        : batch(s[0]),
          seq_len(s[1]),
          channels(s[2]),
          vocabulary(s[3]),
          max_seq_len(s[4]) {}
    std::size_t rows() const { return std::size_t(batch) * seq_len; }
};

template <class T>
struct EmbeddingForward : Operation {
    EmbeddingSizes s;
    Tensor<int> tokens;
    Tensor<T> token_table, position_table, out;

    explicit EmbeddingForward(const Shape& shape)
        : s(shape),
          tokens(input<int>("tokens", s.rows(), {.first = random_tokens(s.rows(), s.vocabulary)})),
          token_table(input<T>("token table", std::size_t(s.vocabulary) * s.channels)),
          position_table(input<T>("position table", std::size_t(s.max_seq_len) * s.channels)),
          out(output<T>("out", s.rows() * s.channels)) {
        tensors[out.number].exact = true;
        bytes = 3.0 * s.rows() * s.channels * sizeof(T);
    }
    void run(device::StreamRef stream) override {
        kernels::embedding_forward<T>({out, tokens, token_table, position_table, s.batch, s.seq_len, s.channels},
                                      stream);
    }
    template <class V> void formula(V& v) const {
        using N = typename V::Number;
        v.each(s.rows(), [s = s, id = v[tokens], token = v[token_table], position = v[position_table],
                          y = v[out]](std::size_t row) {
            const std::size_t from = std::size_t(int(id[row])) * s.channels, at = row % s.seq_len * s.channels;
            for (int c = 0; c < s.channels; ++c) y[row * s.channels + c] = N(token[from + c]) + N(position[at + c]);
        });
    }
};

template <class T>
struct EmbeddingBackward : Operation {
    EmbeddingSizes s;
    bool accumulate;
    kernels::RowsByToken<std::vector<int>> sorted;
    Tensor<int> tokens, sorted_token, sorted_start, sorted_row;  // tokens: for the formula
    Tensor<T> dout;
    Tensor<float> dtoken_table, dposition_table;

    explicit EmbeddingBackward(const Shape& shape)
        : s(shape),
          accumulate(shape[5]),
          sorted(sort(s)),
          tokens(numbers("tokens", random_tokens(s.rows(), s.vocabulary))),
          sorted_token(numbers("sorted token", sorted.token)),
          sorted_start(numbers("start of rows", sorted.start)),
          sorted_row(numbers("sorted row", sorted.row)),
          dout(input<T>("dout", s.rows() * s.channels)),
          dtoken_table(in_out<float>("dtoken table", std::size_t(s.vocabulary) * s.channels)),
          dposition_table(
              output_or_in_out<float>(accumulate, "dposition table", std::size_t(s.max_seq_len) * s.channels)) {
        bytes = (2.0 * s.rows() * sizeof(T) + 2.0 * (sorted.token.size() + s.seq_len) * sizeof(float)) * s.channels;
        weights = {{dout.number, "out"}};
        gradients = {{dtoken_table.number, "token table", true},
                     {dposition_table.number, "position table", accumulate}};
    }
    static kernels::RowsByToken<std::vector<int>> sort(const EmbeddingSizes& s) {
        const auto tokens = random_tokens(s.rows(), s.vocabulary);
        return kernels::rows_by_token(std::vector<int>(tokens.begin(), tokens.end()), s.vocabulary);
    }
    template <class List> Tensor<int> numbers(const char* name, const List& list) {
        return input<int>(name, list.size(), {.first = {list.begin(), list.end()}});
    }
    void run(device::StreamRef stream) override {
        kernels::embedding_backward<T>({dtoken_table, dposition_table, dout, {sorted_token, sorted_start, sorted_row},
                                        s.batch, s.seq_len, s.channels, s.max_seq_len, accumulate}, stream);
    }
    // The token gradient is sequential over rows, because rows with the same token add to the same row of the table.
    template <class V> void formula(V& v) const {
        using N = typename V::Number;
        const auto id = v[tokens];
        const auto d = v[dout];
        const auto dtoken = v[dtoken_table], dposition = v[dposition_table];
        for (std::size_t row = 0; row < s.rows(); ++row)
            for (int c = 0; c < s.channels; ++c)
                dtoken[std::size_t(int(id[row])) * s.channels + c] += N(d[row * s.channels + c]);
        v.each(s.max_seq_len, [=, this](std::size_t t) {
            for (int c = 0; c < s.channels; ++c) {
                N sum = accumulate ? N(dposition[t * s.channels + c]) : N(0);
                for (int b = 0; b < s.batch && int(t) < s.seq_len; ++b)
                    sum += d[(std::size_t(b) * s.seq_len + t) * s.channels + c];
                dposition[t * s.channels + c] = sum;
            }
        });
    }
};

const std::vector<Shape> kSmall{{4, 256, 768, 50257, 1024}}, kLarge{{64, 1024, 768, 50257, 1024}};
const std::vector<std::string> kDimensions{"batch", "seq_len", "channels", "vocabulary", "max_seq_len",
                                           "add positions"};

const Registered forward({.name = "embedding forward", .tag = "[embedding]", .dimensions = kDimensions,
                          .edges = {{1, 1, 16, 1, 1}, {2, 3, 48, 5, 4}, {3, 37, 80, 257, 64}, {2, 5, 768, 50, 5}},
                          .small = kSmall, .large = kLarge, .make = make<EmbeddingForward>});
// One row; tails; mostly tokens with one row; a few with many, with a partial or an exactly full slice; GPT-2's width.
const Registered backward({.name = "embedding backward",
                           .tag = "[embedding]",
                           .dimensions = kDimensions,
                           .edges = with_each({{1, 1, 16, 1, 1},
                                               {2, 3, 48, 5, 4},
                                               {3, 37, 80, 5000, 64},
                                               {5, 301, 80, 7, 301},
                                               {5, 101, 96, 5, 101},
                                               {2, 33, 768, 257, 40}},
                                              {0, 1}),
                           .small = with_each(kSmall, {1}),
                           .large = with_each(kLarge, {1}),
                           .make = make<EmbeddingBackward>,
                           .forward = make<EmbeddingForward>});

}  // namespace
}  // namespace operations::embedding_operation
