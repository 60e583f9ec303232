// sampler.h - the next token from logits: temperature, then the k likeliest, drawn in proportion to their probabilities
//
// The random stream is its own, so that sampling leaves training as it is. An id at or past the vocabulary cannot be
// drawn: the logits end there.
#pragma once
#include <functional>
#include <span>
#include <vector>

#include "kernels/device/random.h"

namespace llmc {

class Sampler {
public:
    // top_k 0: among all tokens. temperature 0: the likeliest token (the lowest id among equals).
    Sampler(std::uint64_t seed, int top_k, double temperature)
        : bits_(seed),
          top_k_(top_k),
          temperature_(temperature) {}

    // Throws a run-time Error if no logit is finite.
    int next(std::span<const float> logits);

    // A number in [0, 1), from 53 bits.
    double uniform();

private:
    kernels::SplitMix64 bits_;
    int top_k_;
    double temperature_;
};

// `start` followed by `count` tokens drawn one after another. `logits_after(tokens)` gives the logits after the last of
// `tokens`, of which it sees at most the last `longest`. Stops early at `end_of_text`, which is kept, and where `stop`,
// asked before every token, says so.
std::vector<int> sample_tokens(Sampler& sampler, std::vector<int> start, int count, int longest, int end_of_text,
                               const std::function<std::vector<float>(std::span<const int>)>& logits_after,
                               const std::function<bool()>& stop = {});

}  // namespace llmc
