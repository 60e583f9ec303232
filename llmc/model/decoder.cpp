// decoder.cpp - the decoder in fp32 and bf16
//
// Shapes in comments: B sequences, T positions of a text that is processed as a whole, R rows: T, or B if each sequence
// has one token. C channels, NH heads of size HS, V the padded vocabulary, W the window.
#include "llmc/model/decoder.h"

#include <algorithm>
#include <string>

#include "kernels/attention/decode.h"
#include "kernels/base/error.h"
#include "kernels/device/range.h"
#include "kernels/embedding.h"
#include "llmc/model/forward_pass.h"

namespace llmc {
namespace {

// Lengths are rounded up, so that few shapes occur; causality excludes the padding from results.
int padded_length(int length, int most) { return std::min(most, round_up(length, 64)); }

template <class Element>
struct DecoderSpans {
    std::vector<std::span<Element>> keys, values;  // the cache, per layer (B, NH, W, HS)
    std::size_t cache_bytes;
    std::span<int> tokens;                   // (R)
    std::span<Element> branch;               // (R, C)
    BlockActivations<Element> block;         // of all blocks: nothing is stored. residual_mid is the residual stream
    std::span<float> scratch;                // decode_attention_scratch
    std::span<Element> logits;               // (B, V)
};
template <class Element>
DecoderSpans<Element> lay_out_decoder(Arena& arena, const ModelConfig& config, const DecoderShape& shape) {
    const int longest = padded_length(shape.window, config.max_seq_len);
    const std::size_t rows = std::size_t(std::max(longest, shape.sequences)),
                      narrow = rows * std::size_t(config.channels),
                      cached = std::size_t(shape.sequences) * shape.window * std::size_t(config.channels);
    DecoderSpans<Element> act;
    for (int layer = 0; layer < config.layers; ++layer)
        for (auto* cache : {&act.keys, &act.values}) cache->push_back(arena.take<Element>(cached));
    act.cache_bytes = arena.bytes();
    BlockActivations<Element>& block = act.block;
    act.tokens = arena.take<int>(rows);
    for (auto* tensor : {&block.residual_mid, &block.ln1.normed, &block.attention, &act.branch})
        *tensor = arena.take<Element>(narrow);
    for (auto* statistic : {&block.ln1.mean, &block.ln1.rstd}) *statistic = arena.take<float>(rows);
    block.ln2 = block.ln1;
    for (auto* wide : {&block.pre_gelu, &block.gelu})
        *wide = arena.take<Element>(rows * std::size_t(config.hidden_channels()));
    block.qkv = block.pre_gelu;
    block.logsumexp = arena.take<float>(rows * std::size_t(config.heads));
    act.scratch = arena.take<float>(kernels::decode_attention_scratch(shape.sequences, 1, shape.window, config.heads,
                                                                      config.head_size()));
    act.logits = arena.take<Element>(std::size_t(shape.sequences) * std::size_t(config.padded_vocabulary()));
    return act;
}

template <class Element>
DecoderBytes bytes_of_decoder(const ModelConfig& config, const DecoderShape& shape) {
    Arena arena(nullptr);
    const std::size_t cache = lay_out_decoder<Element>(arena, config, shape).cache_bytes;
    return {cache, arena.bytes() - cache};
}

template <class Element>
class Gpt2Decoder final : public Decoder {
public:
    Gpt2Decoder(const ModelWeights& weights, const DecoderShape& shape, Context& context)
        : Decoder(shape), weights_(weights), table_(weights.table()), config_(table_.config()), context_(context),
          pass_(weights, context, FewRows::own_kernel), texts_(std::size_t(shape.sequences)),
          memory_(bytes_of_decoder<Element>(config_, shape).total()), logits_(std::size_t(shape.sequences)) {
        Arena arena(memory_.data());
        act_ = lay_out_decoder<Element>(arena, config_, shape);
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
        copy_logits(0, 0);
        for (std::vector<float>& logits : logits_) logits = logits_.front();
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
            copy_logits(sequence, 0);
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
        const int rows = padded_length(length_, config_.max_seq_len);
        std::vector<int> padded = texts_[std::size_t(sequence)];
        padded.resize(std::size_t(rows), 0);
        embed(padded, {.batch = 1, .seq_len = rows}, 0);
        blocks(rows, [&](int layer) {
            kernels::cache_append<Element>({.keys = of_sequence(act_.keys[std::size_t(layer)], sequence),
                                            .values = of_sequence(act_.values[std::size_t(layer)], sequence),
                                            .qkv = act_.block.qkv, .batch = 1, .first = 0, .count = length_,
                                            .capacity = shape_.window, .heads = config_.heads,
                                            .head_size = config_.head_size()}, stream());
            context_.attention.forward<Element>({.out = act_.block.attention, .logsumexp = act_.block.logsumexp,
                                                 .qkv = act_.block.qkv,
                                                 .shape = {1, rows, config_.heads, config_.head_size()}}, stream());
        });
        head(length_ - 1, 1);
    }

    // Computes the last token of every sequence, and the logits after each, in its row.
    void append(std::span<const int> tokens) {
        const device::Range range("step");
        embed(tokens, {.batch = shape_.sequences, .seq_len = 1}, length_ - 1);
        blocks(shape_.sequences, [&](int layer) {
            const auto keys = act_.keys[std::size_t(layer)], values = act_.values[std::size_t(layer)];
            kernels::cache_append<Element>({.keys = keys, .values = values, .qkv = act_.block.qkv,
                                            .batch = shape_.sequences, .first = length_ - 1, .count = 1,
                                            .capacity = shape_.window, .heads = config_.heads,
                                            .head_size = config_.head_size()}, stream());
            kernels::decode_attention<Element>({.out = act_.block.attention, .scratch = act_.scratch,
                                                .qkv = act_.block.qkv, .keys = keys, .values = values,
                                                .batch = shape_.sequences, .first = length_ - 1, .count = 1,
                                                .capacity = shape_.window, .heads = config_.heads,
                                                .head_size = config_.head_size()}, stream());
        });
        head(0, shape_.sequences);
        for (int sequence = 0; sequence < shape_.sequences; ++sequence) copy_logits(sequence, sequence);
    }

    // Copies the cache of the prompt, which was computed for the first sequence, to the others.
    void copy_first_sequence() {
        for (int layer = 0; layer < config_.layers; ++layer)
            for (const Tensor cache : {act_.keys[std::size_t(layer)], act_.values[std::size_t(layer)]})
                for (int sequence = 1; sequence < shape_.sequences; ++sequence)
                    device::copy_on_device(of_sequence(cache, sequence).data(), cache.data(),
                                           of_sequence(cache, 0).size_bytes(), stream());
    }

    // (R) -> (R, C); the tokens of every sequence start at `position`
    void embed(std::span<const int> tokens, const MicroBatchShape& shape, int position) {
        upload_.assign(tokens.begin(), tokens.end());
        device::copy_to_device(act_.tokens.data(), upload_.data(), tokens.size_bytes(), stream());
        const std::size_t first = std::size_t(position) * std::size_t(config_.channels);
        kernels::embedding_forward<Element>({.out = act_.block.residual_mid, .tokens = act_.tokens,
                                             .token_table = pass_.weight(table_.token_table()),
                                             .position_table = pass_.weight(table_.position_table()).subspan(first),
                                             .batch = shape.batch, .seq_len = shape.seq_len,
                                             .channels = config_.channels}, stream());
        pass_.layernorm(act_.block.ln1, act_.block.residual_mid, table_.block(0).ln1, int(shape.rows()));
    }

    // `attention(layer)` computes attention from qkv.
    template <class Attention> void blocks(int rows, const Attention& attention) {
        const BlockActivations<Element>& a = act_.block;
        for (int layer = 0; layer < config_.layers; ++layer) {
            const BlockParameters& p = table_.block(layer);
            pass_.block_to_gelu(a, a.residual_mid, act_.branch, p, rows, [&] { attention(layer); });
            pass_.block_from_gelu(a.residual_mid, a.ln1, a, act_.branch, p, table_.layernorm_after(layer), rows);
        }
    }

    // Logits of these rows.
    void head(int first_row, int rows) {
        const std::size_t first = std::size_t(first_row) * std::size_t(config_.channels);
        pass_.linear(act_.logits, Input(act_.block.ln1.normed).subspan(first), table_.head(), rows);
    }
    // Of a row, without the vocabulary's padding; waits.
    void copy_logits(int sequence, int row) {
        std::vector<Element> host(std::size_t(config_.vocabulary));
        device::copy_to_host(host.data(), &act_.logits[std::size_t(row) * std::size_t(config_.padded_vocabulary())],
                             host.size() * sizeof(Element), stream());
        context_.stream.sync();
        std::vector<float>& logits = logits_[std::size_t(sequence)];
        logits.clear();
        for (const Element value : host) {
            if constexpr (std::is_same_v<Element, float>) logits.push_back(value);
            else logits.push_back(kernels::bf16_to_float(value));
        }
    }

    Tensor of_sequence(Tensor cache, int sequence) const {
        const std::size_t size = cache.size() / std::size_t(shape_.sequences);
        return cache.subspan(std::size_t(sequence) * size, size);
    }
    device::StreamRef stream() const { return context_.stream; }

    const ModelWeights& weights_;
    const ParameterTable& table_;
    const ModelConfig config_;
    Context& context_;
    ForwardPass<Element> pass_;
    std::vector<int> upload_;  // source of an asynchronous copy; each start() and step() waits for it
    std::vector<std::vector<int>> texts_;  // the visible tokens of each sequence
    device::Memory memory_;
    DecoderSpans<Element> act_;
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
