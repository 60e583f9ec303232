// sampler.h - the next token from logits: temperature, then of the k likeliest the fewest that together have a
// probability of top_p (nucleus sampling, Holtzman et al. 2020), drawn in proportion to their probabilities
//
// The random stream is its own, so that sampling leaves training as it is. An id at or past the vocabulary cannot be
// drawn: the logits end there.
#pragma once
#include <span>
#include <vector>

#include "kernels/device/random.h"

namespace llmc {

struct Sampling {
    int top_k = 50;          // 0: among all tokens
    double top_p = 1;        // a share of the probability that the k likeliest have together; 1: all of it
    double temperature = 1;  // 0: the likeliest token (the lowest id among equals)
};

class Sampler {
public:
    Sampler(std::uint64_t seed, const Sampling& sampling)
        : bits_(seed),
          sampling_(sampling) {}

    // Throws a run-time Error if no logit is finite. A token takes one number of the stream, or none where only one can
    // be drawn.
    int next(std::span<const float> logits);

    // A number in [0, 1), from 53 bits.
    double uniform();

private:
    kernels::SplitMix64 bits_;
    Sampling sampling_;
};

}  // namespace llmc
