// evaluator.h - runs validation, HellaSwag and sampling, and reports their results
#pragma once
#include <exception>
#include <optional>

#include "llmc/run/evaluation/hellaswag.h"
#include "llmc/run/evaluation/validation_loss.h"
#include "llmc/run/loop/loop.h"

namespace llmc {

class Evaluator {
public:
    // Every rank has an evaluator and makes the same calls.
    explicit Evaluator(Loop& loop) : loop_(loop) {}

    // Evaluate the model after `made` optimizer steps. A signal ends each of them early: then they report nothing and
    // return the signal; 0: no signal came. Only with their data.
    // Sets unreadable() if a rank cannot read its data.
    int validate(std::int64_t made);
    int sample(std::int64_t made);
    // Also ends early, and prints so, once a rank is out of time: then HellaSwag is still pending.
    HellaSwagScore score_hellaswag(std::int64_t made, const TimeIsUp& time_is_up = [] { return false; });

    // The Error of the last validation; the same on every rank.
    const std::exception_ptr& unreadable() const { return unreadable_; }

private:
    ReceivedSignal received_signal() const {
        return [this] { return loop_.interrupt.signal(); };
    }

    Loop& loop_;
    std::exception_ptr unreadable_;
    bool bytes_counted_ = false;
    std::optional<double> bits_per_byte_;  // per nat and token; rank 0, if known
};

}  // namespace llmc
