// communicator_local.h - ranks as threads of one process, for tests: with a communication stream that does the worst it
// may
//
// What a forgotten wait() or wait() does on a GPU depends on luck. Here it depends on the order that the test chooses:
//   prompt  a thread per rank runs collectives as soon as all ranks have enqueued them, with random delays of at most
//           `delay`: real overlap, for ThreadSanitizer (which sees a forgotten hold as a race) and for the order of
//           events
//   late    nothing runs before a rank holds or waits for it: who reads results too early reads what was there before,
//           who overwrites the input too early sends the new values
//   early   input is read when it is enqueued, and output is filled with 0xff (NaN) at once; results arrive at wait()
//           or wait(): who reads or keeps what was there, or writes into the output meanwhile, loses it
// In the last two a rank's memory is touched by its own thread only, in wait() and wait(), or while it waits in the
// control plane and another rank is in wait() or wait() for it: a program in which every rank forgets the same is wrong
// every time. Sums are made on the host, in rank order.
//
// Errors, not hangs: when a rank throws, all that wait for it throw "rank R failed: ..."; who waits for a rank that has
// ended, or calls something else than the others do, or waits longer than `patience`, throws what it waited for.
#pragma once
#include <chrono>
#include <functional>

#include "llmc/comm/communicator.h"

namespace llmc {

enum class LocalOrder { prompt, late, early };
struct LocalSettings {
    LocalOrder order = LocalOrder::prompt;
    std::chrono::microseconds delay{0};
    unsigned seed = 1;
    int ranks_of_node = 0;  // so many neighbours count as a machine; 0: all ranks
    std::chrono::milliseconds patience{60000};
};

// Calls `run` on `ranks` threads, each with its communicator and one OpenMP thread. Returns when all have ended and
// what they enqueued has run; rethrows what the first rank that failed threw.
void run_ranks(int ranks, const std::function<void(Communicator&)>& run, const LocalSettings& settings = {});

}  // namespace llmc
