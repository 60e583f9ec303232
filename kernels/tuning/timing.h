// timing.h - how long each of some candidates takes, and in which order to prefer them
#pragma once
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "kernels/device/types.h"

namespace kernels {

struct Timing {
    std::vector<double> seconds;  // medians; infinity: the candidate threw Error
    std::vector<int> ranking;     // the candidates that ran, fastest first; ties: the first
    std::string notes;            // for people, each begins with "; ": what could not be done, and why
};

// Times candidates in two passes. run(candidate) enqueues one on `stream`. In the first pass all run once to warm up,
// then three times; in the second those within 5 % of the fastest run fifteen times more, and only those times rank
// them. Candidates take turns, so that a clock that changes affects all of them, each after more than `cache_bytes`
// were written elsewhere, so that operands come from memory as they do in training; without memory for that, caches are
// warm, and `notes` says so. A candidate that throws Error is not run again. Waits.
Timing time_candidates(int count, const std::function<void(int candidate)>& run, std::size_t cache_bytes,
                       StreamRef stream);

// The fastest candidate whose results repeat bit for bit; -1: none. Adds to `notes` how many were passed over.
int fastest_that_repeats(Timing& timing, const std::function<bool(int candidate)>& repeats);

// Device memory that time_candidates() takes to empty a cache, for plans.
constexpr std::size_t timing_bytes(std::size_t cache_bytes) { return 2 * cache_bytes; }

}  // namespace kernels
