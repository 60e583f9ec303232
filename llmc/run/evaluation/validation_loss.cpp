// evaluation.cpp - validation over all ranks, and samples from a prompt
#include "llmc/run/evaluation.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <numbers>

#include "kernels/device/memory.h"
#include "llmc/base/terminal.h"
#include "llmc/comm/agreement.h"
#include "llmc/run/throughput.h"

namespace llmc {
namespace {

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
    SignalQuestions questions(*context.communicator, signal_so_far);
    ProgressLine progress(context.communicator->rank() == 0);
    for (std::int64_t i = 0; i < batches.size(); ++i) {
        progress.show_share("validation", double(i) / double(batches.size()));
        const auto answer = questions.ask_before(i, mine != nullptr);
        if (answer.signal != 0) {
            context.stream.sync();  // for what still adds to the sum
            return {.signal = answer.signal};
        }
        if (answer.ends) break;
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

std::optional<double> bits_per_byte_of_nat(const ValidationBatches& batches, const Tokenizer& tokenizer) {
    if (!tokenizer.has_table()) return std::nullopt;
    std::int64_t bytes = 0;
    try {
        bytes = batches.target_bytes(tokenizer.token_bytes());
    } catch (const Error&) {  // the shards have changed since the loss was computed: the next validation tells
    }
    if (bytes == 0) return std::nullopt;
    return double(batches.targets()) / (std::numbers::ln2 * double(bytes));
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
