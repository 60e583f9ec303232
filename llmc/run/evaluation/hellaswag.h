// hellaswag.h - HellaSwag accuracy: how often a model assigns the right one of four endings the highest probability
//
// Source    Zellers et al. 2019; endings are scored as by Brown et al. 2020 and llm.c: by the loss in nats of the
//           ending's tokens after the context, summed (acc) or averaged (acc_norm). The lowest wins; ties: the first.
//           Equal endings of an example have the loss of the first one: a matrix product may round a row in another way
//           at another place in the batch, so their computed losses can differ in the last bits.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "llmc/base/option.h"
#include "llmc/data/hellaswag_batches.h"
#include "llmc/model/batch_upload.h"
#include "llmc/run/evaluation/signal_poll.h"

namespace llmc {

struct HellaSwagSettings {
    std::string file{};        // empty: off
    std::int64_t every = 250;  // steps
};
void add_options(OptionList& list, HellaSwagSettings& settings);

struct HellaSwagScore {
    std::int64_t examples = 0, right = 0, right_norm = 0;
    double seconds = 0;
    int signal = 0;            // not 0: a rank received this signal, and there is no result
    bool out_of_time = false;  // true: a rank ran out of time, and there is no result

    double acc() const { return double(right) / double(examples); }
    double acc_norm() const { return double(right_norm) / double(examples); }
    double acc_norm_error() const;  // standard error of a binomial proportion
};

// `nats`: the summed loss of every row (HellaSwagBatches). An example with a sum that is not finite counts as wrong.
HellaSwagScore score_of(const HellaSwagFile& file, std::span<const double> nats);

// Whether the time limit has passed by the clock of this rank.
using TimeIsUp = std::function<bool()>;

// Every rank calls it and gets the result. Waits for the device. `upload` must have room for a batch's positions. If
// one rank is out of time, all of them stop.
HellaSwagScore hellaswag_score(const HellaSwagBatches& batches, Model& model, BatchUpload& upload, Context& context,
                               const ReceivedSignal& received_signal, const TimeIsUp& time_is_up);

}  // namespace llmc
