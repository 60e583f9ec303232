// sampler.h - samples the next token from logits: softmax with a temperature over the k most likely tokens, restricted
// to the smallest set with a cumulative probability of at least top_p (nucleus sampling, Holtzman et al. 2020)
//
// It has its own random stream, so that sampling does not change training. Ids beyond the logits cannot be sampled.
#pragma once
#include <span>
#include <vector>

#include "kernels/device/random.h"

namespace llmc {

struct Sampling {
    std::int64_t top_k = 50;  // 0: all tokens
    double top_p = 1;        // of the probability of the k most likely tokens; 1: all of it
    double temperature = 1;  // 0: the most likely token; ties: the lowest id
};

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

}  // namespace llmc
