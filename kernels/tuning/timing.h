// timing.h - how long each of some candidates takes, and which of them to take
#pragma once
#include <functional>
#include <span>
#include <vector>

#include "kernels/device/types.h"

namespace kernels {

// Another candidate than the first is taken where it needs less than this share of the first one's time: what is faster
// by less than two medians of one candidate differ is not worth other bits after every timing. Not measured on a GPU.
inline constexpr double kWorthAChange = 0.98;

// The median time of each candidate, in seconds. run(candidate) enqueues it on `stream`. All run once to warm up, then
// in turns, so that a clock that changes meets all alike, each after more than `cache_bytes` were written elsewhere, so
// that operands come from memory as they do in training. A candidate that throws Error takes for ever (infinity) and is
// not run again. Waits.
std::vector<double> time_candidates(int count, const std::function<void(int candidate)>& run, std::size_t cache_bytes,
                                    StreamRef stream);

// The candidate to take: the first, unless the fastest is clearly faster (kWorthAChange). -1: none can run.
int choose_by_time(std::span<const double> seconds);

}  // namespace kernels
