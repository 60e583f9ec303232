// timing.h - times candidates and ranks them
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "kernels/device/types.h"

namespace kernels {

struct Timing {
    std::vector<double> seconds;  // medians; infinity: the candidate threw Error
    std::vector<int> ranking;     // the candidates that ran, fastest first; ties: the first
    std::string notes;            // for the output, each starts with "; ": what failed, and why
};

struct Candidates {
    int count;
    std::function<std::string(int candidate)> name;  // for messages
    std::function<void(int candidate)> run;          // enqueues one on the stream; nothing else may wait
    double load_seconds = 0;                         // for which they run before the first timing
};

// Times candidates in two passes. In the first pass all run once as a warm-up, then three times; in the second those
// within 5 % of the fastest run fifteen times more, and only those times rank them. Candidates are interleaved, so that
// clock changes affect all of them. The host enqueues a whole round before it waits: the GPU is as busy as in training,
// and what the host does in run() is not timed. Before each run more than `cache_bytes` are written elsewhere, so that
// operands come from memory as in training; without memory for that, caches are warm, and `notes` says so. A candidate
// that throws Error is not run again. If the GPU fails with it, for good, throws Error with its name. Waits.
Timing time_candidates(const Candidates& candidates, std::size_t cache_bytes, StreamRef stream);

// After an error: false if the GPU has failed for good, as after an invalid access in a kernel. Waits.
bool can_run(StreamRef stream);

// The fastest candidate whose repeated results are bit-identical; -1: none. Adds the number of others to `notes`.
int fastest_reproducible(Timing& timing, const std::function<bool(int candidate)>& repeats);

// Device memory that time_candidates() allocates to flush the cache, for memory plans.
constexpr std::size_t timing_bytes(std::size_t cache_bytes) { return 2 * cache_bytes; }

}  // namespace kernels
