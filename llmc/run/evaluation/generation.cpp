// generation.cpp - generates samples in groups
#include "llmc/run/evaluation/generation.h"

#include <algorithm>

namespace llmc {
namespace {

constexpr std::uint64_t kSeedStride = 1000003;  // between samples, so that neighbouring seeds share no stream

}  // namespace

DecoderShape decoder_shape(const GenerationSettings& settings, std::size_t prompt_tokens) {
    // The last sampled token is never an input.
    const std::size_t text = prompt_tokens + std::size_t(settings.tokens) - 1;
    return {.sequences = std::min(int(settings.samples), kSamplesAtOnce),
            .window = int(std::min(text, std::size_t(settings.window)))};
}

Generator::Generator(const ModelWeights& weights, const GenerationSettings& settings, Vocabulary vocabulary,
                     std::size_t prompt_tokens, Context& context)
    : settings_(settings),
      vocabulary_(vocabulary),
      decoder_(make_decoder(weights, decoder_shape(settings, prompt_tokens), context)) {}

bool Generator::generate(std::span<const int> prompt, const Drawn& drawn, const Stop& stop) {
    const auto samples = int(settings_.samples);
    for (int first = 0; first < samples; first += kSamplesAtOnce)
        if (!generate_group(prompt, first, std::min(kSamplesAtOnce, samples - first), drawn, stop)) return false;
    return true;
}

bool Generator::generate_group(std::span<const int> prompt, int first_sample, int samples, const Drawn& drawn,
                               const Stop& stop) {
    std::vector<Sampler> samplers;
    for (int i = 0; i < samples; ++i)
        samplers.emplace_back(settings_.seed * kSeedStride + std::uint64_t(first_sample + i), settings_.sampling);
    // Sequences that have ended, or that the group does not use, repeat their last token; their logits are ignored.
    std::vector<int> last(std::size_t(decoder_->shape().sequences), prompt.back());
    std::vector<bool> ended(std::size_t(samples), false);
    for (int made = 0; made < settings_.tokens; ++made) {
        if (stop && stop()) return false;
        if (made == 0) decoder_->start(prompt);
        else decoder_->step(last);
        for (int i = 0; i < samples; ++i) {
            if (ended[std::size_t(i)]) continue;
            const std::span<const float> logits = decoder_->logits(i);
            const int token =
                samplers[std::size_t(i)].next(logits.first(std::min(logits.size(), std::size_t(vocabulary_.size))));
            drawn(first_sample + i, token);
            last[std::size_t(i)] = token;
            ended[std::size_t(i)] = token == vocabulary_.end_of_text;
        }
        if (std::ranges::all_of(ended, [](bool x) { return x; })) break;
    }
    return true;
}

}  // namespace llmc
