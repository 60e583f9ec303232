// signal_questions.cpp - how often ranks ask each other
#include "llmc/run/signal_questions.h"

#include <algorithm>

#include "llmc/run/throughput.h"

namespace llmc {

SignalQuestions::SignalQuestions(Communicator& communicator, const SignalSoFar& signal_so_far)
    : communicator_(communicator), signal_so_far_(signal_so_far), asked_at_(seconds_now()) {}

SignalQuestions::Answer SignalQuestions::ask_before(std::int64_t i, bool ends) {
    if (i != next_) return {};
    std::int64_t answers[] = {signal_so_far_(), std::int64_t((seconds_now() - asked_at_) * 1e6), ends};
    communicator_.host_reduce(answers, HostReduction::max);
    const bool soon = answers[1] < kSecondsBetweenQuestions * 1e6;
    if (i > 0) apart_ = soon ? 2 * apart_ : std::max(apart_ / 2, std::int64_t(1));
    next_ += apart_;
    asked_at_ = seconds_now();
    return {.signal = int(answers[0]), .ends = answers[2] != 0};
}

}  // namespace llmc
