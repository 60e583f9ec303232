// generation_test.cpp - samples generated together against each generated alone from the logits of its whole text
#include "llmc/run/evaluation/generation.h"

#include <set>

#include "test/support/model_support.h"

using namespace llmc;
using namespace test;
using kernels::DType;

namespace {

using TokenTexts = std::vector<std::vector<int>>;

const ModelConfig kWriter{.layers = 2, .heads = 2, .channels = 32, .max_seq_len = 48, .vocabulary = 61};
constexpr int kNoEnd = -1;

struct Writer {
    explicit Writer(DType dtype = DType::fp32) {
        model = make_model({.config = kWriter, .dtype = dtype, .shape = {1, kWriter.max_seq_len}, .training = false},
                           ParameterTable(kWriter), context);
        std::vector<float> weights = initial_weights(model->table(), 3);
        for (const auto& spec : model->table().tensors())
            if (!spec.is_vector())
                for (float& weight : model->table().view(std::span(weights), int(&spec - &model->table().tensors()[0])))
                    weight *= 10;  // far from uniform
        model->load(weights);
    }
    TokenTexts generate(const GenerationSettings& settings, const std::vector<int>& prompt, int end_of_text = kNoEnd,
                   const Generator::Stop& stop = {}) {
        TokenTexts texts(std::size_t(settings.samples), prompt);
        Generator generator(*model, settings, {vocabulary, end_of_text}, prompt.size(), context);
        finished = generator.generate(
            prompt, [&](int sample, int token) { texts[std::size_t(sample)].push_back(token); }, stop);
        return texts;
    }
    // Each token from the logits of the whole text, as long as that fits into the window.
    std::vector<int> without_cache(const GenerationSettings& settings, int sample, std::vector<int> text) {
        Sampler sampler(settings.seed * 1000003 + std::uint64_t(sample), settings.sampling);
        const auto decoder = make_decoder(*model, {.sequences = 1, .window = kWriter.max_seq_len}, context);
        for (int i = 0; i < settings.tokens; ++i) {
            decoder->start(text);
            text.push_back(sampler.next(decoder->logits(0)));
        }
        return text;
    }

    Context context = make_context();
    std::unique_ptr<Model> model;
    bool finished = false;
    int vocabulary = kWriter.vocabulary;
};

}  // namespace

TEST_CASE("ids beyond the vocabulary of the text are never sampled", "[generation]") {
    Writer writer;
    const GenerationSettings settings{.tokens = 40, .samples = 3, .sampling = {.top_k = 0, .temperature = 2},
                                      .seed = 5, .window = 48};
    const auto largest = [&] {
        int id = 0;
        for (const auto& text : writer.generate(settings, {1})) id = std::max(id, *std::ranges::max_element(text));
        return id;
    };
    CHECK(largest() > 10);
    writer.vocabulary = 10;
    CHECK(largest() < 10);
}

TEST_CASE("a KV cache does not change the text", "[generation]") {
    const double temperature = GENERATE(0.0, 1.0);
    const std::vector<int> prompt = GENERATE(std::vector<int>{7}, std::vector<int>{1, 2, 3, 4, 5});
    CAPTURE(temperature, prompt);
    Writer writer;
    const GenerationSettings settings{.tokens = 40, .samples = 3, .sampling = {.top_k = 20, .temperature = temperature},
                                      .seed = 5, .window = 48};
    const TokenTexts texts = writer.generate(settings, prompt);
    CHECK(writer.finished);
    for (int sample = 0; sample < 3; ++sample)
        CHECK(texts[std::size_t(sample)] == writer.without_cache(settings, sample, prompt));
    CHECK((texts[0] == texts[1]) == (temperature == 0));
    CHECK(std::set<int>(texts[0].begin(), texts[0].end()).size() > 3);
}

TEST_CASE("a sample does not depend on the number of samples, and is repeatable", "[generation]") {
    Writer writer;
    GenerationSettings settings{.tokens = 20, .samples = 11, .seed = 9, .window = 48};
    const TokenTexts many = writer.generate(settings, {4, 4});
    CHECK(writer.generate(settings, {4, 4}) == many);
    for (const int samples : {1, 8, 9}) {
        settings.samples = samples;
        CHECK(writer.generate(settings, {4, 4}) == TokenTexts(many.begin(), many.begin() + samples));
    }
    settings.seed = 10;
    CHECK(writer.generate(settings, {4, 4})[0] != many[0]);
}

TEST_CASE("a sample ends at the end of text, the others continue; stop ends all", "[generation]") {
    Writer writer;
    const GenerationSettings settings{.tokens = 30, .samples = 3, .seed = 5, .window = 48};
    const TokenTexts whole = writer.generate(settings, {7});
    const int end = whole[1][10];
    const TokenTexts ended = writer.generate(settings, {7}, end);
    CHECK(writer.finished);
    for (int i = 0; i < 3; ++i) {
        std::vector<int> text = whole[std::size_t(i)];
        const auto at = std::find(text.begin() + 1, text.end(), end);
        text.erase(at == text.end() ? at : at + 1, text.end());
        CHECK(ended[std::size_t(i)] == text);
    }
    CHECK(ended[1].size() <= 11);
    int asked = 0;
    const TokenTexts stopped = writer.generate(settings, {7}, kNoEnd, [&] { return ++asked == 4; });
    CHECK(!writer.finished);
    for (std::size_t i = 0; i < 3; ++i)
        CHECK(stopped[i] == std::vector<int>(whole[i].begin(), whole[i].begin() + 4));
}

TEST_CASE("the memory of samples follows from their length and number", "[generation]") {
    CHECK(decoder_shape({.tokens = 64, .samples = 1, .window = 1024}, 1).window == 64);
    CHECK(decoder_shape({.tokens = 64, .samples = 1, .window = 1024}, 100).window == 163);
    CHECK(decoder_shape({.tokens = 5000, .samples = 3, .window = 1024}, 1).window == 1024);
    CHECK(decoder_shape({.tokens = 5000, .samples = 3, .window = 1024}, 1).sequences == 3);
    CHECK(decoder_shape({.tokens = 64, .samples = 1000, .window = 1024}, 1).sequences == kSamplesAtOnce);
}
