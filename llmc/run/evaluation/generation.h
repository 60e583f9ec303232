// generation.h - autoregressive generation of several samples at once
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "llmc/data/shard.h"
#include "llmc/model/decoder.h"
#include "llmc/run/evaluation/sampler.h"

namespace llmc {

struct GenerationSettings {
    std::int64_t tokens = 64, samples = 1;  // new tokens per sample, at most; samples per prompt
    Sampling sampling{};
    std::uint64_t seed = 0;        // sample i has its own random stream, which depends on seed and i
    int window = 0;                // maximum context in tokens (decoder.h)
};

// The number of samples generated together; further samples follow in groups of this size.
inline constexpr int kSamplesAtOnce = 8;

// The decoder for prompts of up to `prompt_tokens`: its window is not longer than the text.
DecoderShape decoder_shape(const GenerationSettings& settings, std::size_t prompt_tokens);

class Generator {
public:
    // Called with every new token. An end of text is the last token of its sample.
    using Drawn = std::function<void(int sample, int token)>;
    // Called before every token (of all samples of a group); true stops the generation.
    using Stop = std::function<bool()>;

    // For prompts of up to `prompt_tokens`. Ids beyond the vocabulary, which a larger model has, are never sampled.
    // Weights and context must outlive it.
    Generator(const ModelWeights& weights, const GenerationSettings& settings, Vocabulary vocabulary,
              std::size_t prompt_tokens, Context& context);

    // Sets the seed of later generate() calls.
    void reseed(std::uint64_t seed) { settings_.seed = seed; }
    // Continues a prompt of at least one token. The same prompt gives the same samples in every call, whatever their
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
