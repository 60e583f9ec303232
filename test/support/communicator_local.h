// communicator_local.h - ranks as threads of one process, for tests, with a worst-case communication stream
//
// On a GPU the effect of a missing wait() or sync() is nondeterministic. Here it depends on the order that the test
// selects:
//   prompt  a thread per rank runs collectives as soon as all ranks have enqueued them, with random delays of at most
//           `delay`: real overlap, for ThreadSanitizer (which reports a missing wait() as a race) and for the order of
//           events
//   late    a collective runs only when a rank calls wait() or sync() for it: code that reads results too early reads
//           stale values, and code that overwrites the input too early sends the new values
//   early   the input is read when the collective is enqueued, and the output is filled with 0xff (NaN) immediately;
//           the results are written in wait() or sync(): code that uses the old output, or writes into the output in
//           between, gets wrong values
// In the last two orders only a rank's own thread accesses its memory, in wait() and sync(), or while it waits in the
// control plane and another rank waits for it in wait() or sync(): a program in which every rank misses the same call
// is wrong in every run. Sums are computed on the host, in rank order.
//
// Errors instead of hangs: when a rank throws, all ranks that wait for it throw "rank R failed: ..."; a rank that waits
// for a rank that has ended, calls something else than the others, or waits longer than `patience`, throws an Error
// that names what it waited for.
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
    int ranks_per_node = 0;  // number of consecutive ranks per simulated node; 0: all ranks
    std::chrono::milliseconds patience{60000};
};

// Calls `run` on `ranks` threads, each with its communicator and one OpenMP thread. Returns when all have ended and all
// enqueued collectives have run; rethrows the exception of the first rank that failed.
void run_ranks(int ranks, const std::function<void(Communicator&)>& run, const LocalSettings& settings = {});

}  // namespace llmc
