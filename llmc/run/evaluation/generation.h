// generation.h - autoregressive generation of several samples at once
//
// The next token is sampled from logits: softmax with a temperature over the k most likely tokens, restricted to the
// smallest set with a cumulative probability of at least top_p (nucleus sampling, Holtzman et al. 2020).
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "kernels/device/random.h"
#include "llmc/data/shard.h"
#include "llmc/model/decoder.h"

namespace llmc {

struct Sampling {
    std::int64_t top_k = 50;  // 0: all tokens
    double top_p = 1;        // of the probability of the k most likely tokens; 1: all of it
    double temperature = 1;  // 0: the most likely token; ties: the lowest id
};

// It has its own random stream, so that sampling does not change training. Ids beyond the logits cannot be sampled.
class Sampler {
public:
    Sampler(std::uint64_t seed, const Sampling& sampling)
        : bits_(seed),
          sampling_(sampling) {}

    // Throws a run-time Error if no logit is finite. Consumes one random number, or none if only one token is possible.
    int next(std::span<const float> logits);

    // In [0, 1), from 53 random bits.
    double uniform();

private:
    kernels::SplitMix64 bits_;
    Sampling sampling_;
};

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
