// generation.cpp - samples tokens from logits, and generates samples in groups
#include "llmc/run/evaluation/generation.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/base/error.h"

namespace llmc {
namespace {

constexpr std::uint64_t kSeedStride = 1000003;  // between samples, so that neighbouring seeds share no stream

// Reduces `ids` to the smallest set of the most likely ones with at least the fraction top_p of the total weight.
template <class Likelier, class Weight>
void keep_nucleus(std::vector<int>& ids, double top_p, const Likelier& likelier, const Weight& weight) {
    double sum = 0;
    for (const int id : ids) sum += weight(id);
    // A heap yields only the ids that stay: a full sort takes longer than a step of a small model.
    const auto last_out = [&](int a, int b) { return likelier(b, a); };
    std::make_heap(ids.begin(), ids.end(), last_out);
    std::vector<int> nucleus;
    double kept = 0;
    while (!ids.empty() && (nucleus.empty() || kept < top_p * sum)) {
        std::pop_heap(ids.begin(), ids.end(), last_out);
        kept += weight(ids.back());
        nucleus.push_back(ids.back());
        ids.pop_back();
    }
    ids = std::move(nucleus);
}

}  // namespace

double Sampler::uniform() { return double(bits_.next() >> 11) * 0x1p-53; }

int Sampler::next(std::span<const float> logits) {
    const auto& [top_k, top_p, temperature] = sampling_;
    // NaN breaks comparisons, so ids whose logit is not finite are removed first.
    std::vector<int> ids;
    ids.reserve(logits.size());
    for (int id = 0; id < int(logits.size()); ++id)
        if (std::isfinite(logits[std::size_t(id)])) ids.push_back(id);
    if (ids.empty())
        throw Error("no logit is finite, so there is no token to sample; the model has diverged", Blame::runtime);
    const auto likelier = [&](int a, int b) {
        return logits[std::size_t(a)] != logits[std::size_t(b)] ? logits[std::size_t(a)] > logits[std::size_t(b)]
                                                                : a < b;
    };
    if (temperature == 0) return *std::min_element(ids.begin(), ids.end(), likelier);
    const std::size_t limit = top_k > 0 ? std::size_t(top_k) : ids.size();
    const std::size_t most = std::min(ids.size(), limit);
    if (most < ids.size()) std::nth_element(ids.begin(), ids.begin() + std::ptrdiff_t(most) - 1, ids.end(), likelier);
    ids.resize(most);
    if (ids.size() == 1) return ids[0];
    float highest = logits[std::size_t(ids[0])];
    for (int id : ids) highest = std::max(highest, logits[std::size_t(id)]);
    const auto weight = [&, temperature = temperature](int id) {
        return std::exp((double(logits[std::size_t(id)]) - highest) / temperature);
    };
    if (top_p < 1) keep_nucleus(ids, top_p, likelier, weight);
    if (ids.size() == 1) return ids[0];

    std::vector<double> cumulative;
    double sum = 0;
    for (int id : ids) cumulative.push_back(sum += weight(id));
    const auto drawn = std::upper_bound(cumulative.begin(), cumulative.end(), uniform() * sum);
    return ids[std::min(std::size_t(drawn - cumulative.begin()), ids.size() - 1)];
}

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
