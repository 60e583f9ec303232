// timing.cpp - rounds of runs, their medians, and the choice
#include "kernels/tuning/timing.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/device/error.h"
#include "kernels/device/memory.h"

namespace kernels {

std::vector<double> time_candidates(int count, const std::function<void(int candidate)>& run, std::size_t cache_bytes,
                                    StreamRef stream) {
    constexpr int kRounds = 5;
    constexpr double kForEver = std::numeric_limits<double>::infinity();
    const device::Memory elsewhere(2 * cache_bytes);
    std::vector<std::vector<double>> times(static_cast<std::size_t>(count));
    std::vector<bool> runs(times.size(), true);
    for (int round = 0; round <= kRounds; ++round)  // the first warms up
        for (int candidate = 0; candidate < count; ++candidate) {
            const auto i = std::size_t(candidate);
            if (!runs[i]) continue;
            try {
                if (elsewhere.bytes() > 0) device::fill_zero(elsewhere.data(), elsewhere.bytes(), stream);
                device::Timer timer;
                timer.start(stream);
                run(candidate);
                timer.stop(stream);
                const double seconds = timer.seconds();
                if (round > 0) times[i].push_back(seconds);
            } catch (const Error&) {
                runs[i] = false;
            }
        }
    std::vector<double> medians;
    for (std::size_t i = 0; i < times.size(); ++i) {
        if (runs[i]) std::ranges::nth_element(times[i], times[i].begin() + kRounds / 2);
        medians.push_back(runs[i] ? times[i][kRounds / 2] : kForEver);
    }
    return medians;
}

int choose_by_time(std::span<const double> seconds) {
    const auto fastest = std::ranges::min_element(seconds);
    if (fastest == seconds.end() || std::isinf(*fastest)) return -1;
    return *fastest < kWorthAChange * seconds.front() ? int(fastest - seconds.begin()) : 0;
}

}  // namespace kernels
