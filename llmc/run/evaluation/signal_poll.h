// signal_poll.h - polls all ranks for a signal several times a second, so that long work ends early on all of them
#pragma once
#include <cstdint>
#include <functional>

#include "llmc/comm/communicator.h"

namespace llmc {

// The signal that this rank has received; 0: none.
using ReceivedSignal = std::function<int()>;

// Between two polls. 2 ranks on 2 cores that other programs use too, batches of 0.4 ms: a poll before every batch
// halves the speed of validation (68k tokens/s instead of 144k, medians of 5 pairs); one every 0.2 s is lost in the
// noise (148k instead of 151k, medians of 8 pairs).
inline constexpr double kSecondsBetweenPolls = 0.2;

// For work in batches, of which every rank has the same number.
class SignalPoll {
public:
    SignalPoll(Communicator& communicator, const ReceivedSignal& received_signal);

    struct Answer {
        int signal = 0;      // the largest of all ranks
        bool stops = false;  // at least one rank passed `stops`
    };
    // Every rank calls it before batch i. Most calls return without communication.
    Answer before_batch(std::int64_t i, bool stops);

private:
    Communicator& communicator_;
    const ReceivedSignal& received_signal_;
    // All ranks poll before the same batches: the interval follows from values that all ranks have.
    std::int64_t next_ = 0, interval_ = 1;
    double polled_at_;
};

}  // namespace llmc
