// signal_questions.h - asks all ranks together, several times a second, whether a signal has come to one of them: what
// takes long ends early then, on all
#pragma once
#include <functional>

#include "llmc/comm/communicator.h"

namespace llmc {

// The signal that has come to this rank, if any, else 0.
using SignalSoFar = std::function<int()>;

// Between two questions. 2 ranks on 2 cores that other programs use too, batches of 0.4 ms: a question before every
// batch halves the speed of validation (68k tokens/s instead of 144k, medians of 5 pairs); one each 0.2 s is lost in
// the noise (148k instead of 151k, medians of 8 pairs).
inline constexpr double kSecondsBetweenQuestions = 0.2;

// Of work in pieces, of which every rank has as many.
class SignalQuestions {
public:
    SignalQuestions(Communicator& communicator, const SignalSoFar& signal_so_far);

    struct Answer {
        int signal = 0;     // the largest of all ranks
        bool ends = false;  // a rank has said so, of its own reason
    };
    // Before piece i, on every rank. Most pieces begin without a question.
    Answer ask_before(std::int64_t i, bool ends);

private:
    Communicator& communicator_;
    const SignalSoFar& signal_so_far_;
    // All ranks ask before the same pieces: how far these lie apart follows from what all know.
    std::int64_t next_ = 0, apart_ = 1;
    double asked_at_;
};

}  // namespace llmc
