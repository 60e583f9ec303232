// bench.h - how the programs in dev/ time a piece of work: warm up, repeat for a while, report the median
#pragma once
#include <algorithm>
#include <chrono>
#include <vector>

#include "llmc/device.h"

namespace bench {

inline double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// A GPU is waited for once in several calls, so that the wait, some microseconds, is a hundredth of what is timed at most. A CPU has nothing to wait for.
#if defined(TRAIN_GPT2_CUDA)
inline constexpr double kShortestSample = 1e-3;
#else
inline constexpr double kShortestSample = 0;
#endif

// Median seconds of one call on the null stream: two calls to warm up, then at least `least` samples and about `budget` seconds of them.
template <class Work>
double median_seconds(Work&& work, double budget = 0.5, int least = 5) {
    const auto time_calls = [&](int calls) {
        const double before = seconds();
        for (int i = 0; i < calls; ++i) work();
        llmc::wait(nullptr);
        return seconds() - before;
    };
    time_calls(1);
    const double once = time_calls(1);
    const int calls = once < kShortestSample ? int(kShortestSample / once) + 1 : 1;
    std::vector<double> times;
    for (const double start = seconds(); int(times.size()) < least || seconds() - start < budget;) times.push_back(time_calls(calls) / calls);
    std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
    return times[times.size() / 2];
}

}  // namespace bench
