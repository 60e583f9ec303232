// decoder.h - GPT-2's logits after each token of a text that grows: new tokens are computed against a cache of the keys
// and values of those before them
//
//   start   the prompt goes through the model as a whole (kernels/attention/attention.h)
//   step    one token of every sequence: its keys and values join the cache, its queries meet all of it
//           (kernels/attention/decode.h); what a step reads is every weight once, whatever the number of sequences
//
// The window: positions are learned, so a model sees at most so many tokens, and a cache is of tokens at their
// positions. Where the window is full, it moves on by half: the later half of it becomes its first, and the cache is
// computed anew. So the model sees the last window / 2 tokens at least and `window` at most; up to the first `window`
// tokens, prompt included, it sees them all. Of a longer prompt it sees the last `window`.
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "llmc/model/context.h"
#include "llmc/model/model_weights.h"

namespace llmc {

struct DecoderShape {
    int sequences;  // that grow together
    int window;     // positions kept, at most the model's
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
    // Every sequence begins anew, with the same tokens. Throws Error for no tokens, or ids outside the vocabulary.
    virtual void start(std::span<const int> prompt) = 0;
    // Every sequence grows by a token of its own: `tokens` has one for each. Only after start().
    virtual void step(std::span<const int> tokens) = 0;
    // Logits over the vocabulary (not its padding) after the last token of a sequence, on the host, until the next
    // start() or step().
    virtual std::span<const float> logits(int sequence) const = 0;
    // The tokens that the model sees.
    virtual int length() const = 0;

    const DecoderShape& shape() const { return shape_; }

protected:
    explicit Decoder(const DecoderShape& shape) : shape_(shape) {}
    DecoderShape shape_;
};

// Of the working parameters, in their type. Weights and context must outlive the decoder; the weights may change
// between two texts. start() and step() wait for the device.
std::unique_ptr<Decoder> make_decoder(const ModelWeights& weights, const DecoderShape& shape, Context& context);

}  // namespace llmc
