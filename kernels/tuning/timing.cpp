// timing.cpp - rounds of runs, their medians, and the ranking
#include "kernels/tuning/timing.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "kernels/base/error.h"
#include "kernels/device/memory.h"

namespace kernels {
namespace {

constexpr int kFirstRounds = 3, kFinalRounds = 15;
// Candidates up to this multiple of the fastest median of three enter the second pass. Not measured on a GPU.
constexpr double kFinalists = 1.05;
constexpr double kNever = std::numeric_limits<double>::infinity();

class Rounds {
public:
    Rounds(const std::function<void(int)>& run, std::size_t cache_bytes, StreamRef stream, Timing& timing)
        : run_(run), stream_(stream), timing_(timing) {
        try {
            elsewhere_ = device::Memory(timing_bytes(cache_bytes));
        } catch (const Error& error) {
            timing.notes += std::string("; timed with warm caches: ") + error.what();
        }
    }
    // Sets the medians of `candidates`.
    void time(const std::vector<int>& candidates, int warm_ups, int rounds) {
        std::vector<std::vector<double>> times(candidates.size());
        for (int round = -warm_ups; round < rounds; ++round)
            for (std::size_t i = 0; i < candidates.size(); ++i) {
                if (timing_.seconds[std::size_t(candidates[i])] == kNever) continue;
                const double seconds = seconds_of(candidates[i]);
                if (round >= 0) times[i].push_back(seconds);
            }
        for (std::size_t i = 0; i < candidates.size(); ++i) {
            double& seconds = timing_.seconds[std::size_t(candidates[i])];
            if (seconds == kNever) continue;
            const auto middle = times[i].begin() + rounds / 2;
            std::ranges::nth_element(times[i], middle);
            seconds = *middle;
        }
    }
    int failed() const { return failed_; }
    const std::string& first_fault() const { return first_fault_; }

private:
    double seconds_of(int candidate) {
        try {
            if (elsewhere_.bytes() > 0) device::fill_zero(elsewhere_.data(), elsewhere_.bytes(), stream_);
            device::Timer timer;
            timer.start(stream_);
            run_(candidate);
            timer.stop(stream_);
            return timer.seconds();
        } catch (const Error& error) {
            if (failed_++ == 0) first_fault_ = error.what();
            return timing_.seconds[std::size_t(candidate)] = kNever;
        }
    }

    const std::function<void(int)>& run_;
    StreamRef stream_;
    Timing& timing_;
    device::Memory elsewhere_;
    int failed_ = 0;
    std::string first_fault_;
};

}  // namespace

Timing time_candidates(int count, const std::function<void(int candidate)>& run, std::size_t cache_bytes,
                       StreamRef stream) {
    Timing timing{std::vector<double>(std::size_t(count)), std::vector<int>(std::size_t(count)), ""};
    if (count == 0) return timing;
    const std::vector<double>& seconds = timing.seconds;
    const auto by_time = [&](int candidate) { return seconds[std::size_t(candidate)]; };
    Rounds rounds(run, cache_bytes, stream, timing);
    std::iota(timing.ranking.begin(), timing.ranking.end(), 0);
    rounds.time(timing.ranking, 1, kFirstRounds);
    std::ranges::stable_sort(timing.ranking, {}, by_time);
    const double limit = kFinalists * by_time(timing.ranking.front());
    const auto is_finalist = [&](int candidate) { return by_time(candidate) <= limit && by_time(candidate) < kNever; };
    std::vector<int> finalists(timing.ranking.begin(), std::ranges::find_if_not(timing.ranking, is_finalist));
    std::ranges::sort(finalists);
    if (finalists.size() > 1) rounds.time(finalists, 0, kFinalRounds);
    std::ranges::stable_sort(finalists, {}, by_time);
    std::ranges::copy(finalists, timing.ranking.begin());
    std::erase_if(timing.ranking, [&](int candidate) { return by_time(candidate) == kNever; });
    if (rounds.failed() > 0)
        timing.notes += "; " + std::to_string(rounds.failed()) + " failed to run: " + rounds.first_fault();
    return timing;
}

int fastest_reproducible(Timing& timing, const std::function<bool(int candidate)>& repeats) {
    int rejected = 0, found = -1;
    for (const int candidate : timing.ranking) {
        if (repeats(candidate)) {
            found = candidate;
            break;
        }
        ++rejected;
    }
    if (rejected > 0) timing.notes += "; " + std::to_string(rejected) + " faster, but not bit-identical when repeated";
    return found;
}

}  // namespace kernels
