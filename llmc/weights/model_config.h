// model_config.h - the size of a GPT-2, and the names of sizes on the command line
#pragma once
#include <string>
#include <string_view>

#include "kernels/base/integers.h"

namespace llmc {

struct ModelConfig {
    int layers = 12, heads = 12, channels = 768;
    int max_seq_len = 1024;
    int vocabulary = 50257;

    int head_size() const { return channels / heads; }
    int hidden_channels() const { return 4 * channels; }  // of the MLP
    // Rows of the embedding table in memory: a multiple of 128, for the tensor cores. The padding rows are always 0.
    int padded_vocabulary() const { return round_up(vocabulary, 128); }
    bool operator==(const ModelConfig&) const = default;
};

// Throws Error that names the first invalid size. Each must be at least 1 and within a bound that keeps every count in
// 64 bits; channels must be divisible by heads, and the head size a multiple of 8 and at most 256.
void check(const ModelConfig& config);

// `d12` (depth: GPT-2's table), `gpt3:c768` (channels: GPT-3's table), `custom:l=4,h=4,c=128[,t=1024][,v=257]`.
// `vocabulary` is used unless the text sets one; `named_vocabulary`: whether it does. Throws Error with the text and
// the known names.
struct NamedModel {
    ModelConfig config;
    bool named_vocabulary = false;
};
NamedModel model_by_name(std::string_view text, int vocabulary);

// A one-line summary: "12 layers, 12 heads, 768 channels, 1024 positions, vocabulary 50257".
std::string describe(const ModelConfig& config);

}  // namespace llmc
