// text_sampler.cpp - rank 0 samples; all ranks agree on when to stop
#include "llmc/run/evaluation/text_sampler.h"

#include <exception>

#include "llmc/base/clock.h"
#include "llmc/comm/agreement.h"

namespace llmc {

TextSampler::TextSampler(const std::string& prompt, const GenerationSettings& settings,
                         std::shared_ptr<const Tokenizer> tokenizer)
    : settings_(settings), tokenizer_(std::move(tokenizer)), start_{tokenizer_->vocabulary().end_of_text} {
    if (prompt.empty()) return;
    const auto tokens = tokenizer_->encode(prompt);
    start_.insert(start_.end(), tokens.begin(), tokens.end());
}

std::vector<std::string> TextSampler::draw(Model& model, Context& context, const std::function<bool()>& stop) const {
    const int end_of_text = tokenizer_->vocabulary().end_of_text;
    std::vector<std::vector<int>> tokens(std::size_t(settings_.samples), {start_.begin() + 1, start_.end()});
    const auto keep = [&](int sample, int token) {
        if (token != end_of_text) tokens[std::size_t(sample)].push_back(token);
    };
    Generator generator(model, settings_, tokenizer_->vocabulary(), start_.size(), context);
    if (!generator.generate(start_, keep, stop)) return {};
    std::vector<std::string> texts;
    for (const std::vector<int>& sample : tokens) texts.push_back(printable(tokenizer_->decode(sample)));
    return texts;
}

std::size_t TextSampler::bytes(const ModelConfig& config, kernels::DType dtype) const {
    return decoder_bytes(config, dtype, decoder_shape(settings_, start_.size())).total();
}

Samples draw_samples(const TextSampler& sampler, Model& model, Context& context,
                     const ReceivedSignal& received_signal) {
    Communicator& communicator = *context.world;
    Samples samples;
    bool done = false;
    double polled_at = 0;
    // Whether to stop: the same result on every rank.
    const auto poll = [&](bool drawn) {
        polled_at = seconds_now();
        std::int64_t values[] = {received_signal(), drawn};
        communicator.host_reduce(values, HostReduction::max);
        samples.signal = int(values[0]);
        done = samples.signal != 0 || values[1] != 0;
        return done;
    };
    std::exception_ptr thrown;
    if (communicator.rank() == 0) {
        try {
            samples.texts = sampler.draw(
                model, context, [&] { return seconds_now() - polled_at >= kSecondsBetweenPolls && poll(false); });
        } catch (...) {
            thrown = std::current_exception();
        }
    }
    while (!done) poll(communicator.rank() == 0);
    share_failure(communicator, thrown);
    if (samples.signal != 0) samples.texts.clear();
    return samples;
}

void add_options(OptionList& list, SampleSettings& s) {
    list.group("Evaluation and sampling");
    list.entry("s,sample-every", s.every, "steps between samples; also after the last step; 0: off",
        Whole{0, kMany});
    list.entry("g,sample-tokens", s.generation.tokens, "new tokens per sample", Whole{1, 1 << 20});
    list.entry("samples", s.generation.samples, "number of samples every --sample-every steps", Whole{1, 1000});
    list.entry("prompt", s.prompt, "text that samples continue; empty: the start of a document");
    list.entry("top-k", s.generation.sampling.top_k,
        "sample only from the k most likely tokens; 0: from all", Whole{0, 65536});
    list.entry("top-p", s.generation.sampling.top_p,
        "nucleus sampling: sample only from the smallest set of tokens with at least this cumulative probability; 1: "
        "off",
        Real{1e-6, 1});
    list.entry("temperature", s.generation.sampling.temperature,
        "softmax temperature for sampling; 0: greedy", Real{0, 100});
}

}  // namespace llmc
