// timing.cpp - rounds of runs, their medians, and the ranking
#include "kernels/tuning/timing.h"

#include <algorithm>
#include <chrono>
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
    Rounds(const Candidates& candidates, std::size_t cache_bytes, StreamRef stream, Timing& timing)
        : candidates_(candidates), stream_(stream), timing_(timing) {
        device::sync(stream);  // throws errors of earlier work, which are none of a candidate
        try {
            elsewhere_ = device::Memory(timing_bytes(cache_bytes));
        } catch (const Error& error) {
            timing.notes += std::string("; timed with warm caches: ") + error.what();
        }
    }
    // Waits after each run, so that an error on the device is that of the candidate.
    void warm_up(const std::vector<int>& some) {
        device::Timer timer;
        for (const int candidate : some)
            attempt(candidate, [&] {
                enqueue(candidate, timer);
                timer.seconds();
            });
    }
    // Sets the medians of some candidates.
    void time(const std::vector<int>& some, int rounds) {
        std::vector<device::Timer> timers(some.size());
        std::vector<std::vector<double>> times(some.size());
        for (int round = 0; round < rounds; ++round) {
            for (std::size_t i = 0; i < some.size(); ++i) attempt(some[i], [&] { enqueue(some[i], timers[i]); });
            for (std::size_t i = 0; i < some.size(); ++i)
                attempt(some[i], [&] { times[i].push_back(timers[i].seconds()); }, " or another one of its round");
        }
        for (std::size_t i = 0; i < some.size(); ++i) {
            double& seconds = timing_.seconds[std::size_t(some[i])];
            if (seconds == kNever) continue;
            const auto middle = times[i].begin() + rounds / 2;
            std::ranges::nth_element(times[i], middle);
            seconds = *middle;
        }
    }
    int failed() const { return failed_; }
    const std::string& first_fault() const { return first_fault_; }

private:
    void enqueue(int candidate, device::Timer& timer) {
        if (elsewhere_.bytes() > 0) device::fill_zero(elsewhere_.data(), elsewhere_.bytes(), stream_);
        timer.start(stream_);
        candidates_.run(candidate);
        timer.stop(stream_);
    }
    // A step of a candidate that has not failed yet.
    template <class Step>
    void attempt(int candidate, Step&& step, const char* or_who = "") {
        double& seconds = timing_.seconds[std::size_t(candidate)];
        if (seconds == kNever) return;
        try {
            step();
        } catch (const Error& error) {
            if (!can_run(stream_))
                throw Error("the GPU failed when " + candidates_.name(candidate) + or_who + ", was timed: " +
                                error.what() + "; --tune=off uses the library's first algorithms",
                            Blame::runtime);
            if (failed_++ == 0) first_fault_ = error.what();
            seconds = kNever;
        }
    }

    const Candidates& candidates_;
    StreamRef stream_;
    Timing& timing_;
    device::Memory elsewhere_;
    int failed_ = 0;
    std::string first_fault_;
};

}  // namespace

bool can_run(StreamRef stream) {
    try {
        device::sync(stream);
        return true;
    } catch (const Error&) {
        return false;
    }
}

Timing time_candidates(const Candidates& candidates, std::size_t cache_bytes, StreamRef stream) {
    const auto count = std::size_t(candidates.count);
    Timing timing{std::vector<double>(count), std::vector<int>(count), ""};
    if (count == 0) return timing;
    const std::vector<double>& seconds = timing.seconds;
    const auto by_time = [&](int candidate) { return seconds[std::size_t(candidate)]; };
    Rounds rounds(candidates, cache_bytes, stream, timing);
    std::iota(timing.ranking.begin(), timing.ranking.end(), 0);
    rounds.warm_up(timing.ranking);
    using Clock = std::chrono::steady_clock;
    const auto end = Clock::now() + std::chrono::duration<double>(candidates.load_seconds);
    while (Clock::now() < end) rounds.time(timing.ranking, 1);
    rounds.time(timing.ranking, kFirstRounds);
    std::ranges::stable_sort(timing.ranking, {}, by_time);
    const double limit = kFinalists * by_time(timing.ranking.front());
    const auto is_finalist = [&](int candidate) { return by_time(candidate) <= limit && by_time(candidate) < kNever; };
    std::vector<int> finalists(timing.ranking.begin(), std::ranges::find_if_not(timing.ranking, is_finalist));
    std::ranges::sort(finalists);
    if (finalists.size() > 1) rounds.time(finalists, kFinalRounds);
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
