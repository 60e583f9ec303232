// embedding.cpp - token plus position embedding and its gradient
#include "kernels/embedding.h"

#include "test/operations/operation.h"
#include "test/operations/text_tokens.h"

namespace operations::embedding_operation {
namespace {

struct EmbeddingSizes {
    int batch, seq_len, channels, vocabulary, max_seq_len;
    explicit EmbeddingSizes(const Shape& s)
        : batch(s[0]), seq_len(s[1]), channels(s[2]), vocabulary(s[3]), max_seq_len(s[4]) {}
    std::size_t rows() const { return std::size_t(batch) * seq_len; }
    std::size_t token_table() const { return std::size_t(vocabulary) * channels; }
    std::size_t position_table() const { return std::size_t(max_seq_len) * channels; }
};

// Of the shape: the mean length of a document; 0: rows are whole.
int document_of(const Shape& shape) { return shape.size() > 6 ? shape[6] : 0; }
// The position of each token in its document.
std::vector<int> positions_of(const EmbeddingSizes& s, int document) {
    std::vector<int> positions = random_starts(s.batch, s.seq_len, document);
    for (std::size_t i = 0; i < positions.size(); ++i) positions[i] = int(i) % s.seq_len - positions[i];
    return positions;
}

// GPT-2's ids have the frequencies of text. With smaller vocabularies half of the tokens are 3 (or 0), like spaces in
// byte text: one token has many more rows than the others.
std::vector<int> random_tokens(const EmbeddingSizes& s) {
    std::mt19937 engine(9);
    TextTokens text(s.vocabulary);
    std::vector<int> tokens(s.rows());
    for (int& token : tokens)
        if (s.vocabulary >= kGpt2Vocabulary) token = text.next();
        else token = engine() % 2 ? std::min(3, s.vocabulary - 1) : int(engine() % unsigned(s.vocabulary));
    return tokens;
}
Fill filled_with(const std::vector<int>& numbers) { return {.first = {numbers.begin(), numbers.end()}}; }

template <class T>
struct EmbeddingForward : Operation {
    EmbeddingSizes s{shape};
    Tensor<int> tokens = input<int>("tokens", s.rows(), filled_with(random_tokens(s)));
    Tensor<T> token_table = input<T>("token table", s.token_table());
    Tensor<T> position_table = input<T>("position table", s.position_table());
    Tensor<T> out = output<T>("out", s.rows() * s.channels);
    int document = document_of(shape);
    std::optional<Tensor<int>> starts{};

    explicit EmbeddingForward(const Shape& shape) : Operation(shape) {
        tensors[out.number].exact = true;
        if (document > 0)
            starts = input<int>("starts", s.rows(), filled_with(random_starts(s.batch, s.seq_len, document)));
        bytes = 3.0 * s.rows() * s.channels * sizeof(T);
    }
    void run(device::StreamRef stream) override {
        kernels::embedding_forward<T>(
            {out, tokens, token_table, position_table, s.batch, s.seq_len, s.channels, if_any(starts)}, stream);
    }
    template <class V> void formula(V& v) const {
        using N = typename V::Number;
        v.each(s.rows(), [s = s, id = v[tokens], token = v[token_table], position = v[position_table], y = v[out],
                          positions = positions_of(s, document)](std::size_t row) {
            const std::size_t from = std::size_t(int(id[row])) * s.channels,
                              at = std::size_t(positions[row]) * s.channels;
            for (int c = 0; c < s.channels; ++c) y[row * s.channels + c] = N(token[from + c]) + N(position[at + c]);
        });
    }
};

template <class T>
struct EmbeddingBackward : Operation {
    EmbeddingSizes s{shape};
    bool accumulate = shape[5];
    kernels::RowsByToken<std::vector<int>> sorted = kernels::rows_by_token(random_tokens(s), s.vocabulary);
    Tensor<int> tokens = numbers("tokens", random_tokens(s));  // for the formula
    Tensor<int> sorted_token = numbers("sorted token", sorted.token);
    Tensor<int> sorted_start = numbers("start of rows", sorted.start);
    Tensor<int> sorted_row = numbers("sorted row", sorted.row);
    Tensor<T> dout = input<T>("dout", s.rows() * s.channels);
    Tensor<float> dtoken_table = in_out<float>("dtoken table", s.token_table());
    Tensor<float> dposition_table = output_or_in_out<float>(accumulate, "dposition table", s.position_table());
    Tensor<float> sums = scratch<float>("scratch", kernels::embedding_backward_scratch(s.rows(), s.channels));
    int document = document_of(shape);
    std::vector<int> positions = positions_of(s, document);
    kernels::RowsByToken<std::optional<Tensor<int>>> by_position{};

    explicit EmbeddingBackward(const Shape& shape) : Operation(shape) {
        bytes = (2.0 * s.rows() * sizeof(T) + 2.0 * (sorted.token.size() + s.seq_len) * sizeof(float)) * s.channels;
        if (document > 0) {
            const auto lists = kernels::rows_by_token(positions, s.seq_len);
            by_position = {numbers("sorted position", lists.token), numbers("start of positions", lists.start),
                           numbers("row of positions", lists.row), lists.chunks};
        }
        weights = {{dout.number, "out"}};
        gradients = {{dtoken_table.number, "token table", true},
                     {dposition_table.number, "position table", accumulate}};
    }
    Tensor<int> numbers(const char* name, const std::vector<int>& list) {
        return input<int>(name, list.size(), filled_with(list));
    }
    void run(device::StreamRef stream) override {
        kernels::embedding_backward<T>({dtoken_table, dposition_table, sums, dout,
                                        {sorted_token, sorted_start, sorted_row, sorted.chunks}, s.batch, s.seq_len,
                                        s.channels, s.max_seq_len, accumulate,
                                        {if_any(by_position.token), if_any(by_position.start),
                                         if_any(by_position.row), by_position.chunks}}, stream);
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
                for (std::size_t row = 0; row < s.rows(); ++row)
                    if (positions[row] == int(t)) sum += d[row * s.channels + c];
                dposition[t * s.channels + c] = sum;
            }
        });
    }
};

const std::vector<Shape> kSmall{{4, 256, 768, 50257, 1024}}, kLarge{{64, 1024, 768, 50257, 1024}};
const std::vector<std::string> kDimensions{"batch", "seq_len", "channels", "vocabulary", "max_seq_len",
                                           "add positions", "document"};

const Registered forward({.name = "embedding forward", .tag = "[embedding]", .dimensions = kDimensions,
                          .edges = {{1, 1, 16, 1, 1}, {2, 3, 48, 5, 4}, {3, 37, 80, 257, 64}, {2, 5, 768, 50, 5},
                                    {3, 37, 80, 257, 64, 0, 7}},
                          .small = kSmall, .large = kLarge, .make = make<EmbeddingForward>});
// One row; tails; mostly tokens with one row; a few with many, with a partial or an exactly full slice; GPT-2's width;
// in chunks: all rows of one token, most rows, and 39 tokens of about 90 rows beside a frequent one; documents, whose
// first positions are frequent.
const Registered backward({.name = "embedding backward", .tag = "[embedding]", .dimensions = kDimensions,
                           .edges = joined(with_each({{1, 1, 16, 1, 1}, {2, 3, 48, 5, 4}, {3, 37, 80, 5000, 64},
                                                      {5, 301, 80, 7, 301}, {5, 101, 96, 5, 101},
                                                      {2, 33, 768, 257, 40}, {1, 129, 16, 1, 129},
                                                      {3, 301, 272, 2, 301}, {6, 1200, 48, 40, 1200}}, {0, 1}),
                                           {{3, 37, 80, 257, 64, 0, 7}, {5, 101, 96, 5, 104, 1, 2}}),
                           .small = with_each(kSmall, {1}), .large = with_each(kLarge, {1}),
                           .make = make<EmbeddingBackward>, .forward = make<EmbeddingForward>});

}  // namespace
}  // namespace operations::embedding_operation
