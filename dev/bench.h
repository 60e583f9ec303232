// bench.h - how the programs in dev/ time a piece of work: warm up, repeat for a while, report the median
#pragma once
#include <algorithm>
#include <chrono>
#include <vector>

#include "kernels/device/device.h"
#include "kernels/device/memory.h"

namespace bench {

inline double seconds() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// A GPU is waited for once in several calls, so that the wait, some microseconds, is a hundredth of what is timed at
// most. A CPU has nothing to wait for.
inline double shortest_sample() { return device::is_gpu() ? 1e-3 : 0; }

// Median seconds of one call on the null stream: two calls to warm up, then at least `least` samples and about `budget`
// seconds of them.
template <class Work>
double median_seconds(Work&& work, double budget = 0.5, int least = 5) {
    const auto time_calls = [&](int calls) {
        const double before = seconds();
        for (int i = 0; i < calls; ++i) work();
        device::sync(nullptr);
        return seconds() - before;
    };
    time_calls(1);
    const double once = time_calls(1);
    const int calls = once < shortest_sample() ? int(shortest_sample() / once) + 1 : 1;
    std::vector<double> times;
    for (const double start = seconds(); int(times.size()) < least || seconds() - start < budget;)
        times.push_back(time_calls(calls) / calls);
    std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
    return times[times.size() / 2];
}

// The middle half of the samples lies within `spread`, a share of the median, on either side of it.
struct Timing {
    double median = 0, spread = 0;
};

// Times work that finds nothing of its own in a cache: before every call a buffer larger than the last cache is
// written.
class ColdTimer {
public:
    explicit ColdTimer(std::size_t cache) : buffer_(2 * cache) {}

    // One call to warm up, then about `budget` seconds of samples: three at least, unless they take ten times as long.
    template <class Work>
    Timing time(Work&& work, double budget) {
        std::vector<double> times;
        const double begin = seconds();
        work();
        device::sync(nullptr);
        for (double elapsed = 0; elapsed < budget || (times.size() < 3 && elapsed < 10 * budget) || times.empty();
             elapsed = seconds() - begin) {
            device::fill_zero(buffer_.data(), buffer_.bytes(), nullptr);
            timer_.start(nullptr);
            work();
            timer_.stop(nullptr);
            times.push_back(timer_.seconds());
        }
        std::sort(times.begin(), times.end());
        const double median = times[times.size() / 2];
        return {median, (times[times.size() * 3 / 4] - times[times.size() / 4]) / 2 / median};
    }

private:
    device::Memory buffer_;
    device::Timer timer_;
};

}  // namespace bench
