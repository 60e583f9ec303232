// decoder_test.cpp - logits with a KV cache against logits of the whole text, at every position
#include "llmc/model/decoder.h"

#include "test/support/model_support.h"

using namespace llmc;
using namespace test;
using kernels::DType;

namespace {

constexpr int kPositions = 272;
const ModelConfig kDecoded{.layers = 2, .heads = 2, .channels = 32, .max_seq_len = kPositions, .vocabulary = 61};

// A model whose attention and logits are far from uniform, unlike an untrained model.
struct Decoded {
    explicit Decoded(DType dtype = DType::fp32) {
        model = make_model({.config = kDecoded, .dtype = dtype, .shape = {1, kPositions}, .training = false},
                           ParameterTable(kDecoded), context);
        std::mt19937 engine(11);
        std::normal_distribution<float> normal(0, 0.2f);
        std::vector<float> weights(std::size_t(model->table().elements()));
        for (const auto& spec : model->table().tensors())
            for (std::int64_t i = 0; i < spec.rows_in_files * spec.columns; ++i)
                weights[std::size_t(spec.offset + i)] = normal(engine) +
                                                        float(spec.is_vector() && spec.name.ends_with("weight"));
        model->load(weights);
        if (dtype == DType::bf16)
            for (float& weight : weights) weight = kernels::bf16_to_float(kernels::bf16_from_float(weight));
        parameters.assign(weights.begin(), weights.end());
        GlobalBatch batch = random_batch(5, kTexts, kPositions);
        for (auto first = batch.tokens.begin(); first != batch.tokens.end(); first += kPositions)
            texts.emplace_back(first, first + kPositions);
    }

    // The fp64 logits after the last token.
    std::vector<double> reference(std::span<const int> tokens) const {
        const auto all = reference_logits(model->table(), parameters, {tokens, {}, 1, int(tokens.size())});
        return {all.end() - kDecoded.vocabulary, all.end()};
    }
    // The fp64 logits after each token.
    std::vector<double> reference_of(int text) const {
        return reference_logits(model->table(), parameters, {texts[std::size_t(text)], {}, 1, kPositions});
    }
    std::span<const int> text(int number, int first, int count) const {
        return std::span<const int>(texts[std::size_t(number)]).subspan(std::size_t(first), std::size_t(count));
    }

    static constexpr int kTexts = 3;
    Context context = make_context();
    std::unique_ptr<Model> model;
    std::vector<double> parameters;  // rounded as in the model
    std::vector<std::vector<int>> texts;
};

std::vector<float> logits_of(const Decoder& decoder, int sequence = 0) {
    const auto logits = decoder.logits(sequence);
    return {logits.begin(), logits.end()};
}

std::vector<double> row_of(const std::vector<double>& logits, int row) {
    const auto first = logits.begin() + std::ptrdiff_t(row) * kDecoded.vocabulary;
    return {first, first + kDecoded.vocabulary};
}

}  // namespace

TEST_CASE("logits with a cache equal those of the whole text at every position", "[decoder]") {
    const DType dtype = GENERATE(DType::fp32, DType::bf16);
    Decoded decoded(dtype);
    const auto want = decoded.reference_of(0);
    const auto decoder = make_decoder(*decoded.model, {.sequences = 1, .window = kPositions}, decoded.context);
    // The roundings are the same in another order: the bound is twice the largest error without a cache.
    double tolerance = 0;
    for (int length = 8; length <= kPositions; length += 8) {
        decoder->start(decoded.text(0, 0, length));
        tolerance = std::max(tolerance, 2 * largest_error(logits_of(*decoder), row_of(want, length - 1)));
    }
    CAPTURE(tolerance / largest_magnitude(want));
    CHECK(tolerance < (dtype == DType::fp32 ? 1e-5 : 0.2) * largest_magnitude(want));
    // One token; across the prompt's multiple of 64, and across attention's tiles of 64, 128 and 256 keys.
    const auto [prompt, grown] = GENERATE(table<int, int>({{1, 20}, {5, 12}, {60, 68}, {64, 66}, {125, 131},
                                                           {254, 260}, {271, 272}}));
    CAPTURE(dtype == DType::bf16, prompt, grown);
    decoder->start(decoded.text(0, 0, prompt));
    CHECK(decoder->length() == prompt);
    CHECK(largest_error(logits_of(*decoder), row_of(want, prompt - 1)) <= tolerance);
    for (int length = prompt + 1; length <= grown; ++length) {
        CAPTURE(length);
        decoder->step(decoded.text(0, length - 1, 1));
        CHECK(decoder->length() == length);
        CHECK(largest_error(logits_of(*decoder), row_of(want, length - 1)) <= tolerance);
    }
}

TEST_CASE("beyond its window a text continues with the later half of the window", "[decoder]") {
    Decoded decoded;
    const auto [window, kept] = GENERATE(table<int, int>({{16, 8}, {5, 2}, {2, 1}, {1, 1}}));
    CAPTURE(window);
    const auto decoder = make_decoder(*decoded.model, {.sequences = 2, .window = window}, decoded.context);
    // Of a longer prompt the end is used.
    const int prompt = window + 3;
    std::vector<std::vector<int>> texts(2, {decoded.texts[0].begin(), decoded.texts[0].begin() + prompt});
    decoder->start(texts[0]);
    int seen = window;
    for (int step = 0; step <= 2 * window + 3; ++step) {
        CAPTURE(step, seen);
        CHECK(decoder->length() == seen);
        for (int i = 0; i < 2; ++i) {
            const auto& text = texts[std::size_t(i)];
            const auto want = decoded.reference(std::span<const int>(text).last(std::size_t(seen)));
            CHECK(largest_error(logits_of(*decoder, i), want) <= 1e-5 * (1 + largest_magnitude(want)));
        }
        for (int i = 0; i < 2; ++i)
            texts[std::size_t(i)].push_back(decoded.texts[std::size_t(i + 1)][std::size_t(step)]);
        decoder->step(std::vector<int>{texts[0].back(), texts[1].back()});
        seen = seen == window ? kept : seen + 1;
    }
}

TEST_CASE("a decoder's memory follows from its shape", "[decoder]") {
    const DecoderShape shape{.sequences = 3, .window = 100};
    const DecoderBytes bytes = decoder_bytes(kDecoded, DType::fp32, shape);
    CHECK(bytes.cache == 2 * 2 * 3 * 100 * 32 * sizeof(float));  // keys and values, layers, sequences, positions
    CHECK(decoder_bytes(kDecoded, DType::bf16, shape).cache == bytes.cache / 2);
    CHECK(decoder_bytes(kDecoded, DType::fp32, {.sequences = 3, .window = 200}).activations > bytes.activations);
}
