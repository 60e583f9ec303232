// validation_loss.h - the loss of a model on the validation data, per token and per byte
#pragma once
#include <exception>
#include <optional>

#include "llmc/data/tokenizer.h"
#include "llmc/data/validation_batches.h"
#include "llmc/model/batch_upload.h"
#include "llmc/run/evaluation/signal_poll.h"

namespace llmc {

// Either a loss, or why there is none; the same on every rank.
struct ValidationLoss {
    double loss = 0;  // mean in nats over the valid targets of all batches of all ranks
    double seconds = 0;
    int signal = 0;                   // not 0: a rank received this signal, and validation ended early
    std::exception_ptr unreadable{};  // the Error of a rank that could not read its data
};
// Every rank calls it. Waits for the device.
ValidationLoss validation_loss(ValidationBatches& batches, Model& model, BatchUpload& upload, MicroBatchShape shape,
                               Context& context, const ReceivedSignal& received_signal);

// The factor from a loss in nats per token to bits per byte of text, which compares models with different
// vocabularies: the number of targets (ends of text included) divided by ln 2 and the bytes that the targets stand for.
// Reads the targets. Empty if the tokenizer has no table or the targets stand for no bytes.
std::optional<double> bits_per_byte_of_nat(const ValidationBatches& batches, const Tokenizer& tokenizer);

}  // namespace llmc
