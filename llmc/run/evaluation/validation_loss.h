// evaluation.h - what a model can do so far: its loss over the validation data, and text that it makes up
#pragma once
#include <exception>
#include <functional>
#include <optional>

#include "llmc/data/tokenizer.h"
#include "llmc/data/validation_batches.h"
#include "llmc/model/batch_upload.h"
#include "llmc/run/generation.h"
#include "llmc/run/signal_questions.h"

namespace llmc {

// All ranks ask each other together (signal_questions.h) between batches and between tokens of a sample: a signal to
// one of them ends both on all. Then `signal` of the result, the largest of all ranks, is not 0, and there is no other
// result.

// Mean loss in nats over the valid targets of all batches of all ranks, which take part together. Waits.
struct ValidationLoss {
    double loss = 0;
    double seconds = 0;
    int signal = 0;
    // the Error of a rank that could not read its data, the same on every rank: there is no other result either
    std::exception_ptr unreadable{};
};
ValidationLoss validation_loss(ValidationBatches& batches, Model& model, BatchUpload& upload, MicroBatchShape shape,
                               Context& context, const SignalSoFar& signal_so_far);

// What turns that loss into bits by the bytes of the text instead of its tokens, so that vocabularies can be compared:
// nats of all targets, ends of text among them, divided by ln 2 and the bytes that the targets stand for. Reads the
// targets. Empty where the tokenizer has no table, or there are no bytes.
std::optional<double> bits_per_byte_of_nat(const ValidationBatches& batches, const Tokenizer& tokenizer);

// Text that the model goes on with after a prompt; empty: the start of a document. Its random stream is its own and
// starts anew with every call.
class TextSampler {
public:
    // Throws Error if the prompt cannot be turned into tokens.
    // Ids past its vocabulary, which a larger model has, are never drawn.
    TextSampler(const std::string& prompt, const GenerationSettings& settings,
                std::shared_ptr<const Tokenizer> tokenizer);
    // `stop` is asked before every token. Where it says so there is no text.
    std::vector<std::string> draw(Model& model, Context& context, const std::function<bool()>& stop) const;
    // Device memory that draw() takes while it draws, for the memory plan.
    std::size_t bytes(const ModelConfig& config, kernels::DType dtype) const;

private:
    GenerationSettings settings_;
    std::shared_ptr<const Tokenizer> tokenizer_;
    std::vector<int> start_;  // every document begins with an end of text
};

// What rank 0 draws; the others attend, and get no text. Throws on every rank what drawing throws.
struct Samples {
    std::vector<std::string> texts;
    int signal = 0;
};
Samples draw_samples(const TextSampler& sampler, Model& model, Context& context, const SignalSoFar& signal_so_far);

}  // namespace llmc
