// evaluation.h - what a model can do so far: its loss over the validation data, and text that it makes up
#pragma once
#include <exception>
#include <optional>

#include "llmc/data/tokenizer.h"
#include "llmc/data/validation_batches.h"
#include "llmc/model/batch_upload.h"
#include "llmc/run/sampler.h"

namespace llmc {

// Mean loss in nats over the valid targets of all batches of all ranks, which take part together. Waits.
struct ValidationLoss {
    double loss;
    double seconds;
    // instead of a loss: the Error of a rank that could not read its data, the same on every rank
    std::exception_ptr unreadable{};
};
ValidationLoss validation_loss(ValidationBatches& batches, Model& model, BatchUpload& upload, MicroBatchShape shape,
                               Context& context);

struct SampleSettings {
    std::string prompt;          // empty: the start of a document
    int tokens = 64, samples = 1, top_k = 50;
    double temperature = 1;
    std::uint64_t seed = 0;
    int longest = 0;             // tokens that the model sees at most
};

// Text that the model goes on with after a prompt. Its random stream is its own and starts anew with every call.
class TextSampler {
public:
    // Throws Error if the prompt cannot be turned into tokens.
    TextSampler(const SampleSettings& settings, Vocabulary vocabulary);
    std::vector<std::string> draw(Model& model) const;

private:
    SampleSettings settings_;
    std::unique_ptr<Tokenizer> tokenizer_;
    std::vector<int> start_;  // every document begins with an end of text
};

}  // namespace llmc
