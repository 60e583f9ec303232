// hellaswag.h - how often a model finds the right one of four endings likeliest
//
// Source    Zellers et al. 2019; the endings as Brown et al. 2020 and llm.c score them: by the nats of the ending's
//           tokens after the context, their sum (acc) or their mean (acc_norm). The least wins, of equals the first.
#pragma once
#include <cstdint>
#include <functional>
#include <span>

#include "llmc/data/hellaswag_batches.h"
#include "llmc/model/batch_upload.h"
#include "llmc/run/signal_questions.h"

namespace llmc {

struct HellaSwagScore {
    std::int64_t examples = 0, right = 0, right_norm = 0;
    double seconds = 0;
    int signal = 0;            // not 0: it ended the work, and there is no result
    bool out_of_time = false;  // as well

    double acc() const { return double(right) / double(examples); }
    double acc_norm() const { return double(right_norm) / double(examples); }
    double acc_norm_error() const;  // standard error of a binomial share
};

// From the sum of nats of every row (HellaSwagBatches). An example of which a sum is not finite is not right.
HellaSwagScore score_of(const HellaSwagFile& file, std::span<const double> nats);

// By the clock of this rank.
using OutOfTime = std::function<bool()>;

// Every rank calls it and gets the result. Waits. `upload` takes the batches' positions. Where one rank is out of time,
// all of them end.
HellaSwagScore hellaswag_score(const HellaSwagBatches& batches, Model& model, BatchUpload& upload, Context& context,
                               const SignalSoFar& signal_so_far, const OutOfTime& out_of_time);

}  // namespace llmc
