// evaluation.cpp - validation over all ranks, and samples from a prompt
#include "llmc/run/evaluation.h"

#include <algorithm>
#include <cstring>
#include <exception>

#include "kernels/device/memory.h"
#include "llmc/comm/agreement.h"
#include "llmc/run/throughput.h"

namespace llmc {
namespace {

// Between two questions for a signal. 2 ranks on 2 cores that other programs use too, batches of 0.4 ms: a question
// before every batch halves the speed of validation (68k tokens/s instead of 144k, medians of 5 pairs); one each 0.2 s
// is lost in the noise (148k instead of 151k, medians of 8 pairs).
constexpr double kSecondsBetweenQuestions = 0.2;

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
                               Context& context, const SignalSoFar& signal_so_far) {
    const double began = seconds_now();
    device::Array<double> loss_sum(1);
    loss_sum.zero(context.stream);
    std::exception_ptr mine;
    // All ranks have as many batches, and ask before the same ones: how far these lie apart follows from what all know.
    std::int64_t next_question = 0, apart = 1;
    double asked_at = began;
    for (std::int64_t i = 0; i < batches.size(); ++i) {
        if (i == next_question) {
            std::int64_t answers[] = {signal_so_far(), std::int64_t((seconds_now() - asked_at) * 1e6), mine != nullptr};
            context.communicator->host_reduce(answers, HostReduction::max);
            if (answers[0] != 0) {
                context.stream.sync();  // for what still adds to the sum
                return {.signal = int(answers[0])};
            }
            if (answers[2] != 0) break;
            const bool soon = answers[1] < kSecondsBetweenQuestions * 1e6;
            if (i > 0) apart = soon ? 2 * apart : std::max(apart / 2, std::int64_t(1));
            next_question += apart;
            asked_at = seconds_now();
        }
        const Batch* batch = nullptr;
        try {
            if (!mine) batch = &batches[i];
        } catch (...) {
            mine = std::current_exception();
        }
        if (batch)
            model.evaluate(upload.upload(batch->inputs, batch->targets, shape, Purpose::evaluation), loss_sum.span());
    }
    context.stream.sync();
    try {
        share_failure(*context.communicator, mine);
    } catch (const Error&) {
        return {.unreadable = std::current_exception()};
    }
    const double sum = sum_over_ranks(*context.communicator, loss_sum.download(context.stream)[0]);
    return {.loss = sum / double(batches.targets()), .seconds = seconds_now() - began};
}

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

Samples draw_samples(const TextSampler& sampler, Model& model, Context& context, const SignalSoFar& signal_so_far) {
    Communicator& communicator = *context.communicator;
    Samples samples;
    bool done = false;
    double asked_at = 0;
    // Whether to end, of which every rank gets the same answer.
    const auto ask = [&](bool drawn) {
        asked_at = seconds_now();
        std::int64_t wishes[] = {signal_so_far(), drawn};
        communicator.host_reduce(wishes, HostReduction::max);
        samples.signal = int(wishes[0]);
        done = samples.signal != 0 || wishes[1] != 0;
        return done;
    };
    std::exception_ptr thrown;
    if (communicator.rank() == 0) {
        try {
            samples.texts = sampler.draw(
                model, context, [&] { return seconds_now() - asked_at >= kSecondsBetweenQuestions && ask(false); });
        } catch (...) {
            thrown = std::current_exception();
        }
    }
    while (!done) ask(communicator.rank() == 0);
    share_failure(communicator, thrown);
    if (samples.signal != 0) samples.texts.clear();
    return samples;
}

}  // namespace llmc
