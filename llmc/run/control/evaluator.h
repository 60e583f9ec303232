// evaluator.h - runs validation, HellaSwag and sampling, and reports their results
#pragma once
#include <exception>
#include <optional>
#include <span>

#include "llmc/model/batch_upload.h"
#include "llmc/run/control/interrupt.h"
#include "llmc/run/control/run_health.h"
#include "llmc/run/evaluation/hellaswag.h"
#include "llmc/run/evaluation/text_sampler.h"
#include "llmc/run/evaluation/validation_loss.h"
#include "llmc/run/log/report.h"

namespace llmc {

class Evaluator {
public:
    struct Inputs {
        MicroBatchShape shape;
        const Tokenizer& tokenizer;
        std::span<ValidationSet> validation;  // empty: no validation
        const HellaSwagBatches* hellaswag;  // null: no HellaSwag
        const TextSampler* sampler;         // null: no samples
    };
    // Every rank has an evaluator and makes the same calls. All arguments must outlive it.
    Evaluator(const Inputs& inputs, Context& context, Model& model, BatchUpload& upload, RunHealth& health,
              Report& report, const Interrupt& interrupt)
        : inputs_(inputs), context_(context), model_(model), upload_(upload), health_(health), report_(report),
          interrupt_(interrupt) {}

    // Evaluate the model after `made` optimizer steps. A signal ends each of them early: then they report nothing and
    // return the signal; 0: no signal came. Only for inputs that there are.
    // Sets unreadable() if a rank cannot read its data.
    int validate(std::int64_t made);
    int sample(std::int64_t made);
    // Also ends early, and prints so, once a rank is out of time: then HellaSwag is still pending.
    HellaSwagScore score_hellaswag(std::int64_t made, const TimeIsUp& time_is_up = [] { return false; });

    // The Error of the last validation; the same on every rank.
    const std::exception_ptr& unreadable() const { return unreadable_; }

private:
    ReceivedSignal received_signal() const {
        return [this] { return interrupt_.signal(); };
    }

    Inputs inputs_;
    Context& context_;
    Model& model_;
    BatchUpload& upload_;
    RunHealth& health_;
    Report& report_;
    const Interrupt& interrupt_;
    std::exception_ptr unreadable_;
    bool bytes_counted_ = false;
    std::optional<double> bits_per_byte_;  // per nat and token; rank 0, if known
};

}  // namespace llmc
