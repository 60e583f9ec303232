// timing_cuda_test.cpp - a GPU under timing stays busy: the host waits once per round
#include <atomic>
#include <chrono>
#include <thread>

#include "kernels/device/device.h"
#include "kernels/device/stream.h"
#include "kernels/tuning/timing.h"
#include "test/support/support.h"

using namespace kernels;

TEST_CASE("all runs of a round are enqueued before the host waits", "[tuning][one_order]") {
    if (device::count() == 0) test::skip("this machine has no GPU");
    constexpr int kCandidates = 3, kRounds = 4;  // the first is the warm-up, in which each run is waited for
    const device::Stream stream;
    std::atomic<int> enqueued = 0, early = 0;
    // The device waits in each run until the round is enqueued, for 5 s at most.
    const auto wait_for_round = [&](int last) {
        const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(5);
        while (enqueued < last && early == 0) {
            if (std::chrono::steady_clock::now() > end) ++early;
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
    };
    const auto run = [&](int) {
        const int number = enqueued++, round = number / kCandidates;
        if (round > 0 && round < kRounds)
            device::call_on_host(stream, [&wait_for_round, last = kCandidates * (round + 1)] { wait_for_round(last); });
    };
    time_candidates({kCandidates, nullptr, run}, 0, stream);
    stream.sync();
    CHECK(enqueued >= kCandidates * kRounds);
    CHECK(early == 0);
}
