// generation.h - text that a model makes up: tokens drawn one after another, for several samples at once
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "llmc/data/shard.h"
#include "llmc/model/decoder.h"
#include "llmc/run/sampler.h"

namespace llmc {

struct GenerationSettings {
    int tokens = 64, samples = 1;  // new tokens of a sample, at most; samples of a prompt
    Sampling sampling{};
    std::uint64_t seed = 0;        // sample i has a stream of its own that follows from it and i
    int window = 0;                // tokens that the model sees at most (decoder.h)
};

// So many samples grow together, others after them.
inline constexpr int kSamplesAtOnce = 8;

// What a decoder for prompts of up to `prompt_tokens` needs: no longer window than the text.
DecoderShape decoder_shape(const GenerationSettings& settings, std::size_t prompt_tokens);

class Generator {
public:
    // What the samples have drawn, a token at a time: an end of text is the last of its sample.
    using Drawn = std::function<void(int sample, int token)>;
    // Asked before every token, of all samples that grow together.
    using Stop = std::function<bool()>;

    // For prompts of up to `prompt_tokens`. Ids past the vocabulary, which the model may have, are never drawn. Weights
    // and context must outlive it.
    Generator(const ModelWeights& weights, const GenerationSettings& settings, Vocabulary vocabulary,
              std::size_t prompt_tokens, Context& context);

    // Other samples from here on.
    void reseed(std::uint64_t seed) { settings_.seed = seed; }
    // Goes on with a prompt of at least one token. Samples are the same for the same prompt again, and whatever their
    // number. False: `stop` ended it.
    bool generate(std::span<const int> prompt, const Drawn& drawn, const Stop& stop = {});

private:
    bool generate_group(std::span<const int> prompt, int first_sample, int samples, const Drawn& drawn,
                        const Stop& stop);

    GenerationSettings settings_;
    Vocabulary vocabulary_;
    std::unique_ptr<Decoder> decoder_;
};

}  // namespace llmc
