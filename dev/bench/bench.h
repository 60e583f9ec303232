// bench.h - timers of the benchmarks: warm up, repeat for a time budget, report the median
#pragma once
#include <algorithm>
#include <chrono>
#include <functional>
#include <vector>

#include "kernels/device/device.h"
#include "kernels/device/memory.h"

namespace bench {

inline double seconds() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Half of the samples lie within median * (1 +- spread). Times in seconds.
struct Timing {
    double median = 0, spread = 0, fastest = 0;
};

// Times work with cold caches: before every call all threads write a buffer larger than the last-level cache, as each
// thread may have a cache of its own.
class ColdTimer {
public:
    explicit ColdTimer(std::size_t cache) : buffer_(2 * cache) {}

    // Calls the functions in turn, so that other load on the machine affects all of them equally: one warm-up round,
    // then about `budget` seconds of samples, at least five rounds unless they take more than 10 * `budget`.
    using Works = std::vector<std::function<void()>>;
    std::vector<Timing> time(const Works& works, double budget) {
        std::vector<std::vector<double>> times(works.size());
        const double begin = seconds();
        for (const auto& work : works) work();
        device::sync(nullptr);
        for (double elapsed = 0; elapsed < budget || (times[0].size() < 5 && elapsed < 10 * budget) || times[0].empty();
             elapsed = seconds() - begin)
            for (std::size_t i = 0; i < works.size(); ++i) {
                cool();
                timer_.start(nullptr);
                works[i]();
                timer_.stop(nullptr);
                times[i].push_back(timer_.seconds());
            }
        std::vector<Timing> result;
        for (std::vector<double>& of : times) {
            std::sort(of.begin(), of.end());
            const double median = of[of.size() / 2];
            result.push_back({median, (of[of.size() * 3 / 4] - of[of.size() / 4]) / 2 / median, of[0]});
        }
        return result;
    }

private:
    void cool() {
        if (device::is_gpu()) return device::fill_zero(buffer_.data(), buffer_.bytes(), nullptr);
        constexpr std::size_t kPart = std::size_t(1) << 18;
        #pragma omp parallel for schedule(static, 1)
        for (std::size_t first = 0; first < buffer_.bytes(); first += kPart)
            device::fill_zero(static_cast<std::byte*>(buffer_.data()) + first, std::min(kPart, buffer_.bytes() - first),
                              nullptr);
    }

    device::Memory buffer_;
    device::Timer timer_;
};

}  // namespace bench
