// run_evaluation.h - what a run computes beside its steps, and reports: validation, HellaSwag and samples
#pragma once
#include <exception>
#include <optional>

#include "llmc/model/batch_upload.h"
#include "llmc/run/hellaswag.h"
#include "llmc/run/interrupt.h"
#include "llmc/run/plan.h"
#include "llmc/run/report.h"

namespace llmc {

// Every rank has one and calls the same; only with what the plan has. All that it is given must outlive it.
class RunEvaluation {
public:
    RunEvaluation(Plan& plan, Context& context, Model& model, BatchUpload& upload, Report& report,
                  const Interrupt& interrupt)
        : plan_(plan), context_(context), model_(model), upload_(upload), report_(report), interrupt_(interrupt) {}

    // After `step` updates. Each ends early on a signal, which it returns, with nothing to report; 0: none came.
    // Data that a rank cannot read are `unreadable` then, the same on every rank.
    int validate(std::int64_t step);
    int sample(std::int64_t step);
    // Ends early, and says so, where a rank is out of time, too: then it has still to be done.
    HellaSwagScore score_hellaswag(std::int64_t step, const OutOfTime& out_of_time = [] { return false; });

    const std::exception_ptr& unreadable() const { return unreadable_; }

private:
    SignalSoFar signal_so_far() const {
        return [this] { return interrupt_.signal(); };
    }

    Plan& plan_;
    Context& context_;
    Model& model_;
    BatchUpload& upload_;
    Report& report_;
    const Interrupt& interrupt_;
    std::exception_ptr unreadable_;
    bool bytes_counted_ = false;
    std::optional<double> bits_per_byte_;  // of a nat; of rank 0, where it is known
};

}  // namespace llmc
