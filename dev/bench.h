// bench.h - how the programs in dev/ time a piece of work: warm up, repeat for a while, report the median
#pragma once
#include <algorithm>
#include <chrono>
#include <vector>

#include "llmc/device.h"

namespace bench {

inline double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Median seconds of one call: two calls to warm up, then at least `least` calls and about `budget` seconds of them.
template <class Work>
double median_seconds(Work&& work, double budget = 0.5, int least = 5) {
    for (int i = 0; i < 2; ++i) work();
    llmc::wait(nullptr);
    std::vector<double> times;
    for (const double start = seconds(); int(times.size()) < least || seconds() - start < budget;) {
        const double before = seconds();
        work();
        llmc::wait(nullptr);
        times.push_back(seconds() - before);
    }
    std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
    return times[times.size() / 2];
}

}  // namespace bench
