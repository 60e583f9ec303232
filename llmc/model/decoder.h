// decoder.h - incremental decoding: GPT-2's logits after each token of growing texts, with a KV cache
//
//   start   processes the whole prompt (kernels/attention/attention.h)
//   step    processes one token per sequence: appends its keys and values to the cache, and attends to the whole cache
//           (kernels/attention/decode.h); reads every weight once, for any number of sequences
//
// The window: position embeddings are learned, so a model has a maximum number of positions, and the cache is valid
// only for tokens at their positions. When the window is full, its later half becomes its first half, and the cache is
// recomputed. So the model sees at least the last window / 2 tokens and at most `window`; it sees all of the first
// `window` tokens, including the prompt. Of a longer prompt it sees the last `window` tokens.
#pragma once
#include <memory>
#include <span>

#include "llmc/model/context.h"
#include "llmc/model/model_weights.h"

namespace llmc {

struct DecoderShape {
    int sequences;  // decoded together
    int window;     // positions in the cache, at most the model's
};

// Device bytes of the cache and the activations, counted without allocating: for the memory plan.
struct DecoderBytes {
    std::size_t cache, activations;
    std::size_t total() const { return cache + activations; }
};
DecoderBytes decoder_bytes(const ModelConfig& config, kernels::DType dtype, const DecoderShape& shape);

class Decoder {
public:
    virtual ~Decoder() = default;
    // Restarts every sequence with the same prompt. Throws Error if it is empty or has ids outside the vocabulary.
    virtual void start(std::span<const int> prompt) = 0;
    // Appends one token to each sequence: `tokens` has one per sequence. Only after start().
    virtual void step(std::span<const int> tokens) = 0;
    // Logits over the vocabulary (not its padding) after the last token of a sequence, on the host, until the next
    // start() or step().
    virtual std::span<const float> logits(int sequence) const = 0;
    // The number of tokens that the model sees.
    virtual int length() const = 0;

    const DecoderShape& shape() const { return shape_; }

protected:
    explicit Decoder(const DecoderShape& shape) : shape_(shape) {}
    DecoderShape shape_;
};

// A decoder of the working parameters, in their type. Weights and context must outlive it; the weights may change
// before start(). start() and step() wait for the device.
std::unique_ptr<Decoder> make_decoder(const ModelWeights& weights, const DecoderShape& shape, Context& context);

}  // namespace llmc
