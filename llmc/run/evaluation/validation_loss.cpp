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
std::vector<double> sums_over_ranks(Communicator& communicator, const std::vector<double>& values) {
    std::vector<double> sums(values.size()), of_rank(values.size());
    const std::size_t size = values.size() * sizeof(double);
    for (const std::string& bytes : communicator.host_gather({reinterpret_cast<const char*>(values.data()), size})) {
        std::memcpy(of_rank.data(), bytes.data(), size);
        for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += of_rank[i];
    }
    return sums;
}

}  // namespace

ValidationLoss validation_loss(std::span<ValidationSet> sets, Model& model, BatchUpload& upload, MicroBatchShape shape,
                               Context& context, const ReceivedSignal& received_signal) {
    device::Array<double> loss_sums(sets.size());
    loss_sums.zero(context.stream);
    std::int64_t batches = 0;
    for (const ValidationSet& set : sets) batches += set.batches.size();
    std::exception_ptr mine;
    SignalPoll poll(*context.world, received_signal);
    ProgressLine progress(context.world->rank() == 0, /*seconds_elsewhere=*/30);
    std::size_t set = 0;
    for (std::int64_t i = 0, of_set = 0; i < batches; ++i, ++of_set) {
        if (of_set == sets[set].batches.size()) ++set, of_set = 0;  // a set has at least one batch
        progress.show_share("validation", double(i) / double(batches));
        const auto answer = poll.before_batch(i, mine != nullptr);
        if (answer.signal != 0) {
            context.stream.sync();  // kernels may still add to loss_sums
            return {.signal = answer.signal};
        }
        if (answer.stops) break;
        const Batch* batch = nullptr;
        try {
            if (!mine) batch = &sets[set].batches[of_set];
        } catch (...) {
            mine = std::current_exception();
        }
        if (batch)
            model.evaluate(upload.upload(batch->inputs, batch->targets, shape, Purpose::evaluation),
                           loss_sums.span().subspan(set, 1));
    }
    context.stream.sync();
    try {
        share_failure(*context.world, mine);
    } catch (const Error&) {
        return {.unreadable = std::current_exception()};
    }
    const std::vector<double> sums = sums_over_ranks(*context.world, loss_sums.download(context.stream));
    ValidationLoss result;
    double nats = 0, weights = 0;
    for (std::size_t i = 0; i < sets.size(); ++i) {
        const double targets = double(sets[i].batches.targets());
        result.losses.push_back(sums[i] / targets);
        nats += sets[i].weight * sums[i];
        weights += sets[i].weight * targets;
    }
    result.loss = nats / weights;
    return result;
}

std::optional<double> nats_to_bits_per_byte(std::span<const ValidationSet> sets, const Tokenizer& tokenizer) {
    if (!tokenizer.has_table()) return std::nullopt;
    double targets = 0, bytes = 0;
    try {
        for (const ValidationSet& set : sets) {
            targets += set.weight * double(set.batches.targets());
            bytes += set.weight * double(set.batches.target_bytes(tokenizer.token_bytes()));
        }
    } catch (const Error&) {  // the shards have changed since the loss was computed: the next validation reports it
        return std::nullopt;
    }
    if (bytes == 0) return std::nullopt;
    return targets / (std::numbers::ln2 * bytes);
}

void add_options(OptionList& list, ValidationSettings& s) {
    list.group("Evaluation and sampling");
    list.entry("v,val-every", s.every,
        "steps between validations; also before the first and after the last step; 0: off", Whole{0, kMany}, ByRun{});
    list.entry("val-tokens", s.tokens, "tokens per validation, the same ones each time; all if there are fewer",
        Whole{1, kMany}, ByRun{});
    list.entry("val-spread", s.spread,
        "take them from all parts of the validation data, in sequences at equal distances; off: from its start, as "
        "llm.c");
    list.entry("stop-after", s.stop_after,
        "end the run after this many consecutive validations without a new lowest loss; 0: off", Whole{0, kMany},
        ByRun{});
}

}  // namespace llmc
