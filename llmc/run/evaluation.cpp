// evaluation.cpp - validation over all ranks, and samples from a prompt
#include "llmc/run/evaluation.h"

#include <cstring>

#include "kernels/device/memory.h"
#include "llmc/comm/agreement.h"
#include "llmc/run/throughput.h"

namespace llmc {
namespace {

constexpr std::uint64_t kSeedStride = 1000003;  // between samples: streams of neighbouring seeds share no sample

// In the order of the ranks; every rank gets it.
double sum_over_ranks(Communicator& communicator, double value) {
    double sum = 0;
    for (const std::string& bytes : communicator.host_gather({reinterpret_cast<const char*>(&value), sizeof value})) {
        double of_rank;
        std::memcpy(&of_rank, bytes.data(), sizeof of_rank);
        sum += of_rank;
    }
    return sum;
}

}  // namespace

ValidationLoss validation_loss(ValidationBatches& batches, Model& model, BatchUpload& upload, MicroBatchShape shape,
                               Context& context) {
    const double began = seconds_now();
    device::Array<double> loss_sum(1);
    loss_sum.zero(context.stream);
    std::exception_ptr mine;
    for (std::int64_t i = 0; i < batches.size() && !mine; ++i) {
        const Batch* batch = nullptr;
        try {
            batch = &batches[i];
        } catch (...) {
            mine = std::current_exception();
            continue;
        }
        model.evaluate(upload.upload(batch->inputs, batch->targets, shape, Purpose::evaluation), loss_sum.span());
    }
    context.stream.sync();
    try {
        share_failure(*context.communicator, mine);
    } catch (const Error&) {
        return {.loss = 0, .seconds = 0, .unreadable = std::current_exception()};
    }
    const double sum = sum_over_ranks(*context.communicator, loss_sum.download(context.stream)[0]);
    return {.loss = sum / double(batches.targets()), .seconds = seconds_now() - began};
}

TextSampler::TextSampler(const SampleSettings& settings, Vocabulary vocabulary)
    : settings_(settings), tokenizer_(tokenizer_for(vocabulary)), start_{vocabulary.end_of_text} {
    if (settings.prompt.empty()) return;
    const auto prompt = tokenizer_->encode(settings.prompt);
    start_.insert(start_.end(), prompt.begin(), prompt.end());
}

std::vector<std::string> TextSampler::draw(Model& model) const {
    const int end_of_text = tokenizer_->vocabulary().end_of_text;
    std::vector<std::string> texts;
    for (int i = 0; i < settings_.samples; ++i) {
        Sampler sampler(settings_.seed * kSeedStride + std::uint64_t(i), settings_.top_k, settings_.temperature);
        auto tokens = sample_tokens(
            sampler, start_, settings_.tokens, settings_.longest, end_of_text,
            [&](std::span<const int> seen) { return model.logits(seen, int(seen.size()) - 1, 1); });
        if (tokens.back() == end_of_text) tokens.pop_back();
        texts.push_back(tokens.empty() ? std::string()
                                       : printable(tokenizer_->decode(std::span<const int>(tokens).subspan(1))));
    }
    return texts;
}

}  // namespace llmc
