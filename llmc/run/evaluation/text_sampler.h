// text_sampler.h - samples: text that the model generates after a prompt
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "llmc/base/option.h"
#include "llmc/model/model.h"
#include "llmc/run/evaluation/generation.h"
#include "llmc/run/evaluation/signal_poll.h"
#include "llmc/text/tokenizer.h"

namespace llmc {

struct SampleSettings {
    std::int64_t every = 0;  // steps; 0: off
    std::string prompt{};
    GenerationSettings generation{};
};
void add_options(OptionList& list, SampleSettings& settings);

// Continues a prompt; an empty prompt is the start of a document. It has its own random stream, which starts from the
// same seed in every call.
class TextSampler {
public:
    // Throws Error if the prompt cannot be tokenized. Ids beyond the tokenizer's vocabulary, which a larger model has,
    // are never sampled.
    TextSampler(const std::string& prompt, const GenerationSettings& settings,
                std::shared_ptr<const Tokenizer> tokenizer);
    // Calls `stop` before every token; returns no text once it is true.
    std::vector<std::string> draw(Model& model, Context& context, const std::function<bool()>& stop) const;
    // Device memory that draw() allocates until it returns, for the memory plan.
    std::size_t bytes(const ModelConfig& config, kernels::DType dtype) const;

private:
    GenerationSettings settings_;
    std::shared_ptr<const Tokenizer> tokenizer_;
    std::vector<int> start_;  // every document begins with an end-of-text token
};

struct Samples {
    std::vector<std::string> texts;  // rank 0; empty on other ranks
    int signal = 0;                  // not 0: a rank received this signal, and there are no texts
};
// Every rank calls it: rank 0 samples, the others wait. If sampling throws, every rank throws the same error.
Samples draw_samples(const TextSampler& sampler, Model& model, Context& context, const ReceivedSignal& received_signal);

}  // namespace llmc
