// decoder.cpp - the decoder in fp32 and bf16
//
// Shapes in comments: B sequences, T positions of a text that is processed as a whole, R rows: T, or B if each sequence
// has one token. C channels, NH heads of size HS, V the padded vocabulary, W the window.
#include "llmc/model/decoder.h"

#include <algorithm>
#include <string>
#include <type_traits>

#include "kernels/attention/decode.h"
#include "kernels/base/error.h"
#include "kernels/device/range.h"
#include "kernels/embedding.h"
#include "kernels/layernorm.h"
#include "kernels/matmul/few_rows.h"
#include "llmc/model/activations.h"

namespace llmc {
namespace {

// Lengths of prompts are rounded up to a multiple, so that few shapes occur; causality excludes the padding from
// results.
constexpr int kPromptStep = 64;

// The number of rows for a prompt.
int padded_length(const ModelConfig& config, int length) {
    return std::min(config.max_seq_len, (length + kPromptStep - 1) / kPromptStep * kPromptStep);
}

template <class Element>
struct DecoderCache {
    std::vector<std::span<Element>> keys, values;  // per layer (B, NH, W, HS)
};
template <class Element>
DecoderCache<Element> lay_out_cache(Arena& arena, const ModelConfig& config, const DecoderShape& shape) {
    DecoderCache<Element> cache;
    const std::size_t size = std::size_t(shape.sequences) * shape.window * std::size_t(config.channels);
    for (int layer = 0; layer < config.layers; ++layer) {
        cache.keys.push_back(arena.take<Element>(size));
        cache.values.push_back(arena.take<Element>(size));
    }
    return cache;
}

template <class Element>
struct DecoderActivations {
    std::span<int> tokens;                   // (R)
    std::span<Element> residual, normed;     // (R, C)
    std::span<float> mean, rstd;             // (R)
    std::span<Element> qkv;                  // (R, 3C); later reused for pre_gelu, (R, 4C)
    std::span<Element> attention, branch;    // (R, C)
    std::span<Element> gelu;                 // (R, 4C)
    std::span<float> logsumexp;              // (NH, R)
    std::span<float> scratch;                // decode_attention_scratch
    std::span<Element> logits;               // (B, V)
};
template <class Element>
DecoderActivations<Element> lay_out_decoder(Arena& arena, const ModelConfig& config, const DecoderShape& shape) {
    const std::size_t rows = std::size_t(std::max(padded_length(config, shape.window), shape.sequences)),
                      narrow = rows * std::size_t(config.channels);
    DecoderActivations<Element> act;
    act.tokens = arena.take<int>(rows);
    for (auto* tensor : {&act.residual, &act.normed, &act.attention, &act.branch})
        *tensor = arena.take<Element>(narrow);
    for (auto* statistic : {&act.mean, &act.rstd}) *statistic = arena.take<float>(rows);
    for (auto* wide : {&act.qkv, &act.gelu}) *wide = arena.take<Element>(4 * narrow);
    act.logsumexp = arena.take<float>(rows * std::size_t(config.heads));
    act.scratch = arena.take<float>(kernels::decode_attention_scratch(shape.sequences, 1, shape.window, config.heads,
                                                                      config.head_size()));
    act.logits = arena.take<Element>(std::size_t(shape.sequences) * std::size_t(config.padded_vocabulary()));
    return act;
}

template <class Element>
DecoderBytes bytes_of_decoder(const ModelConfig& config, const DecoderShape& shape) {
    Arena cache(nullptr), activations(nullptr);
    lay_out_cache<Element>(cache, config, shape);
    lay_out_decoder<Element>(activations, config, shape);
    return {cache.bytes(), activations.bytes()};
}

template <class Element>
class Gpt2Decoder final : public Decoder {
public:
    Gpt2Decoder(const ModelWeights& weights, const DecoderShape& shape, Context& context)
        : Decoder(shape), weights_(weights), table_(weights.table()), config_(table_.config()), context_(context),
          texts_(std::size_t(shape.sequences)), logits_(std::size_t(shape.sequences)) {
        const DecoderBytes bytes = bytes_of_decoder<Element>(config_, shape);
        cache_memory_ = device::Memory(bytes.cache);
        memory_ = device::Memory(bytes.activations);
        Arena cache(cache_memory_.data()), activations(memory_.data());
        cache_ = lay_out_cache<Element>(cache, config_, shape);
        act_ = lay_out_decoder<Element>(activations, config_, shape);
    }

    void start(std::span<const int> prompt) override {
        require(!prompt.empty(), "the length of a prompt", 0, "at least 1 token");
        for (const int token : prompt) check_token(token);
        weights_.wait_for_parameters();
        const auto seen = prompt.last(std::min(prompt.size(), std::size_t(shape_.window)));
        for (std::vector<int>& text : texts_) text.assign(seen.begin(), seen.end());
        length_ = int(seen.size());
        if (length_ == 1) return append(std::vector<int>(std::size_t(shape_.sequences), seen[0]));
        recompute(0);
        copy_first_sequence();
        for (std::vector<float>& logits : logits_) logits = logits_of(0);
    }

    void step(std::span<const int> tokens) override {
        require(length_ > 0, "the length of a text to continue", length_, "at least 1 token", "call start()");
        require(int(tokens.size()) == shape_.sequences, "the number of tokens of a step", tokens.size(),
                std::to_string(shape_.sequences) + ", one per sequence");
        for (const int token : tokens) check_token(token);
        const bool moves = length_ == shape_.window;
        for (int sequence = 0; sequence < shape_.sequences; ++sequence) {
            std::vector<int>& text = texts_[std::size_t(sequence)];
            text.push_back(tokens[std::size_t(sequence)]);
            if (moves) text.erase(text.begin(), text.end() - std::max(1, shape_.window / 2));
        }
        length_ = int(texts_.front().size());
        if (!moves) return append(tokens);
        for (int sequence = 0; sequence < shape_.sequences; ++sequence) {
            recompute(sequence);
            logits_[std::size_t(sequence)] = logits_of(0);
        }
    }

    std::span<const float> logits(int sequence) const override { return logits_[std::size_t(sequence)]; }
    int length() const override { return length_; }

private:
    using Tensor = std::span<Element>;
    using Input = std::span<const Element>;

    void check_token(int token) const {
        require(token >= 0 && token < config_.vocabulary, "a token id", token,
                "0 to " + std::to_string(config_.vocabulary - 1));
    }

    // Computes the whole text of a sequence: its part of the cache, and the logits after its last token, in row 0.
    void recompute(int sequence) {
        const device::Range range("prompt");
        const int rows = padded_length(config_, length_);
        std::vector<int> padded = texts_[std::size_t(sequence)];
        padded.resize(std::size_t(rows), 0);
        embed(padded, {.batch = 1, .seq_len = rows}, 0);
        blocks(rows, [&](int layer) {
            kernels::cache_append<Element>({.keys = of_sequence(cache_.keys[std::size_t(layer)], sequence),
                                            .values = of_sequence(cache_.values[std::size_t(layer)], sequence),
                                            .qkv = act_.qkv, .batch = 1, .first = 0, .count = length_,
                                            .capacity = shape_.window, .heads = config_.heads,
                                            .head_size = config_.head_size()}, stream());
            context_.attention.forward<Element>({.out = act_.attention, .logsumexp = act_.logsumexp, .qkv = act_.qkv,
                                                 .batch = 1, .seq_len = rows, .heads = config_.heads,
                                                 .head_size = config_.head_size()}, stream());
        });
        head(length_ - 1, 1);
    }

    // Computes the last token of every sequence, and the logits after each, in its row.
    void append(std::span<const int> tokens) {
        const device::Range range("step");
        embed(tokens, {.batch = shape_.sequences, .seq_len = 1}, length_ - 1);
        blocks(shape_.sequences, [&](int layer) {
            const auto keys = cache_.keys[std::size_t(layer)], values = cache_.values[std::size_t(layer)];
            kernels::cache_append<Element>({.keys = keys, .values = values, .qkv = act_.qkv,
                                            .batch = shape_.sequences, .first = length_ - 1, .count = 1,
                                            .capacity = shape_.window, .heads = config_.heads,
                                            .head_size = config_.head_size()}, stream());
            kernels::decode_attention<Element>({.out = act_.attention, .scratch = act_.scratch, .qkv = act_.qkv,
                                                .keys = keys, .values = values, .batch = shape_.sequences,
                                                .first = length_ - 1, .count = 1, .capacity = shape_.window,
                                                .heads = config_.heads, .head_size = config_.head_size()}, stream());
        });
        head(0, shape_.sequences);
        for (int sequence = 0; sequence < shape_.sequences; ++sequence)
            logits_[std::size_t(sequence)] = logits_of(sequence);
    }

    // Copies the cache of the prompt, which was computed for the first sequence, to the others.
    void copy_first_sequence() {
        for (int layer = 0; layer < config_.layers; ++layer)
            for (const Tensor cache : {cache_.keys[std::size_t(layer)], cache_.values[std::size_t(layer)]})
                for (int sequence = 1; sequence < shape_.sequences; ++sequence)
                    device::copy_on_device(of_sequence(cache, sequence).data(), cache.data(),
                                           of_sequence(cache, 0).size_bytes(), stream());
    }

    // (R) -> (R, C); the tokens of every sequence start at `position`
    void embed(std::span<const int> tokens, const MicroBatchShape& shape, int position) {
        upload_.assign(tokens.begin(), tokens.end());
        device::copy_to_device(act_.tokens.data(), upload_.data(), tokens.size_bytes(), stream());
        const std::size_t first = std::size_t(position) * std::size_t(config_.channels);
        kernels::embedding_forward<Element>({.out = act_.residual, .tokens = act_.tokens,
                                             .token_table = weight(table_.token_table()),
                                             .position_table = weight(table_.position_table()).subspan(first),
                                             .batch = shape.batch, .seq_len = shape.seq_len,
                                             .channels = config_.channels}, stream());
        kernels::layernorm_forward<Element>({.normed = act_.normed, .mean = act_.mean, .rstd = act_.rstd,
                                             .residual = act_.residual,
                                             .weight = weight(table_.block(0).ln1.weight),
                                             .bias = weight(table_.block(0).ln1.bias), .rows = int(shape.rows()),
                                             .channels = config_.channels}, stream());
    }

    // Like Model's forward_block(), without storing activations. `attention(layer)` computes attention from qkv.
    template <class Attention> void blocks(int rows, const Attention& attention) {
        for (int layer = 0; layer < config_.layers; ++layer) {
            const BlockParameters& p = table_.block(layer);
            linear(act_.qkv, act_.normed, p.qkv, rows);                           // (R, C) -> (R, 3C)
            attention(layer);                                                     // (R, 3C) -> (R, C)
            linear(act_.branch, act_.attention, p.attn_proj, rows);               // (R, C) -> (R, C)
            add_layernorm(p.ln2, rows);
            linear(act_.gelu, act_.normed, p.fc, rows, act_.qkv);                 // (R, C) -> (R, 4C)
            linear(act_.branch, act_.gelu, p.mlp_proj, rows);                     // (R, 4C) -> (R, C)
            add_layernorm(layer + 1 == config_.layers ? table_.final_ln() : table_.block(layer + 1).ln1, rows);
        }
    }

    // residual += branch, normed = LayerNorm(residual)
    void add_layernorm(const Norm& norm, int rows) {
        kernels::residual_layernorm_forward<Element>({.residual = act_.residual, .normed = act_.normed,
                                                      .mean = act_.mean, .rstd = act_.rstd, .left = act_.residual,
                                                      .right = act_.branch, .weight = weight(norm.weight),
                                                      .bias = weight(norm.bias), .rows = rows,
                                                      .channels = config_.channels}, stream());
    }

    void linear(Tensor out, Input in, const Linear& layer, int rows, Tensor pre_gelu = {}) {
        multiply({.out = out, .pre = pre_gelu, .in = in, .weight = weight(layer.weight), .bias = weight(layer.bias),
                  .rows = rows, .in_channels = layer.in_channels, .out_channels = layer.out_channels});
    }

    // logits = normed wte^T for these rows
    void head(int first_row, int rows) {
        const std::size_t first = std::size_t(first_row) * std::size_t(config_.channels);
        multiply({.out = act_.logits, .pre = {}, .in = Input(act_.normed).subspan(first),  // (rows, C) -> (rows, V)
                  .weight = weight(table_.token_table()), .bias = {}, .rows = rows, .in_channels = config_.channels,
                  .out_channels = config_.padded_vocabulary()});
    }

    void multiply(const kernels::LinearForward<Element>& op) {
        if (op.rows <= kernels::kFewRows) kernels::few_rows_forward(op, stream());
        else context_.matmul.forward(op, stream());
    }

    std::vector<float> logits_of(int row) {
        std::vector<Element> host(std::size_t(config_.vocabulary));
        const std::size_t first = std::size_t(row) * std::size_t(config_.padded_vocabulary());
        device::copy_to_host(host.data(), act_.logits.data() + first, host.size() * sizeof(Element), stream());
        context_.stream.sync();
        if constexpr (std::is_same_v<Element, float>) return host;
        else {
            std::vector<float> wide(host.size());
            std::ranges::transform(host, wide.begin(), kernels::bf16_to_float);
            return wide;
        }
    }

    Tensor of_sequence(Tensor cache, int sequence) const {
        const std::size_t size = cache.size() / std::size_t(shape_.sequences);
        return cache.subspan(std::size_t(sequence) * size, size);
    }
    Input weight(int tensor) const { return weights_.template parameter<Element>(tensor); }
    device::StreamRef stream() const { return context_.stream; }

    const ModelWeights& weights_;
    const ParameterTable& table_;
    const ModelConfig config_;
    Context& context_;
    std::vector<int> upload_;  // source of an asynchronous copy; each start() and step() waits for it
    device::Memory cache_memory_, memory_;
    DecoderCache<Element> cache_;
    DecoderActivations<Element> act_;
    std::vector<std::vector<int>> texts_;     // the visible tokens of each sequence
    std::vector<std::vector<float>> logits_;  // after each sequence
    int length_ = 0;
};

}  // namespace

DecoderBytes decoder_bytes(const ModelConfig& config, kernels::DType dtype, const DecoderShape& shape) {
    return dtype == kernels::DType::bf16 ? bytes_of_decoder<kernels::bf16>(config, shape)
                                         : bytes_of_decoder<float>(config, shape);
}

std::unique_ptr<Decoder> make_decoder(const ModelWeights& weights, const DecoderShape& shape, Context& context) {
    const int positions = weights.table().config().max_seq_len;
    require(shape.sequences >= 1, "the number of sequences", shape.sequences, "at least 1");
    require(shape.window >= 1 && shape.window <= positions, "the window of a text", shape.window,
            "1 to the model's " + std::to_string(positions) + " positions");
    if (weights.dtype() == kernels::DType::bf16)
        return std::make_unique<Gpt2Decoder<kernels::bf16>>(weights, shape, context);
    return std::make_unique<Gpt2Decoder<float>>(weights, shape, context);
}

}  // namespace llmc
