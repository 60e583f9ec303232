// signal_poll.cpp - the number of batches between two polls
#include "llmc/run/evaluation/signal_poll.h"

#include <algorithm>

#include "llmc/base/clock.h"

namespace llmc {

SignalPoll::SignalPoll(Communicator& communicator, const ReceivedSignal& received_signal)
    : communicator_(communicator), received_signal_(received_signal), polled_at_(seconds_now()) {}

SignalPoll::Answer SignalPoll::before_batch(std::int64_t i, bool stops) {
    if (i != next_) return {};
    std::int64_t values[] = {received_signal_(), std::int64_t((seconds_now() - polled_at_) * 1e6), stops};
    communicator_.host_reduce(values, HostReduction::max);
    const bool soon = values[1] < kSecondsBetweenPolls * 1e6;
    if (i > 0) interval_ = soon ? 2 * interval_ : std::max(interval_ / 2, std::int64_t(1));
    next_ += interval_;
    polled_at_ = seconds_now();
    return {.signal = int(values[0]), .stops = values[2] != 0};
}

}  // namespace llmc
