// validation_loss.h - the loss of a model on the validation data, per token and per byte
#pragma once
#include <exception>
#include <optional>
#include <span>
#include <vector>

#include "llmc/base/option.h"
#include "llmc/data/validation_batches.h"
#include "llmc/model/batch_upload.h"
#include "llmc/run/evaluation/signal_poll.h"
#include "llmc/text/tokenizer.h"

namespace llmc {

struct ValidationSettings {
    std::int64_t every = 250, tokens = 10485760;  // steps from one to the next, 0: off; of each
    bool spread = true;           // over the validation data, or else its start
    std::int64_t stop_after = 0;  // validations without a lower loss; 0: no limit
};
void add_options(OptionList& list, ValidationSettings& settings);

// Either a loss, or why there is none; the same on every rank.
struct ValidationLoss {
    double loss = 0;  // mean in nats over the valid targets of all ranks, each with the weight of its set
    std::vector<double> losses{};     // the mean of each set
    int signal = 0;                   // not 0: a rank received this signal, and validation ended early
    std::exception_ptr unreadable{};  // the Error of a rank that could not read its data
};
// Every rank calls it. Waits for the device.
ValidationLoss validation_loss(std::span<ValidationSet> sets, Model& model, BatchUpload& upload, MicroBatchShape shape,
                               Context& context, const ReceivedSignal& received_signal);

// The factor that converts a loss in nats per token to bits per byte of text, which makes models with different
// vocabularies comparable: targets (end-of-text tokens included) / (ln 2 * bytes of text that the targets decode to).
// Targets and their bytes have the weight of their set. Reads all targets. Empty if the tokenizer has no table or the
// targets decode to no bytes.
std::optional<double> nats_to_bits_per_byte(std::span<const ValidationSet> sets, const Tokenizer& tokenizer);

}  // namespace llmc
