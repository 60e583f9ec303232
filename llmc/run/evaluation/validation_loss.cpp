// validation_loss.cpp - validation over all ranks
#include "llmc/run/evaluation/validation_loss.h"

#include <cstring>
#include <numbers>

#include "kernels/device/memory.h"
#include "llmc/base/terminal.h"
#include "llmc/comm/agreement.h"

namespace llmc {
namespace {

// Adds in the order of the ranks, so that every rank has the same bits.
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
                               Context& context, const ReceivedSignal& received_signal) {
    device::Array<double> loss_sum(1);
    loss_sum.zero(context.stream);
    std::exception_ptr mine;
    SignalPoll poll(*context.world, received_signal);
    ProgressLine progress(context.world->rank() == 0, /*seconds_elsewhere=*/30);
    for (std::int64_t i = 0; i < batches.size(); ++i) {
        progress.show_share("validation", double(i) / double(batches.size()));
        const auto answer = poll.before_batch(i, mine != nullptr);
        if (answer.signal != 0) {
            context.stream.sync();  // kernels may still add to loss_sum
            return {.signal = answer.signal};
        }
        if (answer.stops) break;
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
        share_failure(*context.world, mine);
    } catch (const Error&) {
        return {.unreadable = std::current_exception()};
    }
    const double sum = sum_over_ranks(*context.world, loss_sum.download(context.stream)[0]);
    return {.loss = sum / double(batches.targets())};
}

std::optional<double> nats_to_bits_per_byte(const ValidationBatches& batches, const Tokenizer& tokenizer) {
    if (!tokenizer.has_table()) return std::nullopt;
    std::int64_t bytes = 0;
    try {
        bytes = batches.target_bytes(tokenizer.token_bytes());
    } catch (const Error&) {  // the shards have changed since the loss was computed: the next validation reports it
    }
    if (bytes == 0) return std::nullopt;
    return double(batches.targets()) / (std::numbers::ln2 * double(bytes));
}

}  // namespace llmc
