// slow_steps.cpp - reads the scheduler's times of all threads, and compares medians of steps
#include "llmc/run/log/slow_steps.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

#include "llmc/base/clock.h"
#include "llmc/base/number_text.h"

namespace llmc {

std::optional<double> ProcessorShare::latest(double least_seconds) {
    if (seconds_now() - read_ < least_seconds) return share_;
    double ran = 0, waited = 0;
    std::error_code none;
    for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task", none))
        if (double times[2]; std::ifstream(thread.path() / "schedstat") >> times[0] >> times[1])
            ran += times[0], waited += times[1];
    const double ran_before = std::exchange(ran_, ran), waited_before = std::exchange(waited_, waited);
    if (ran == 0) share_.reset();
    else if (std::exchange(read_, seconds_now()) > 0 && ran > ran_before && waited >= waited_before)  // no thread ended
        share_ = (ran - ran_before) / (ran - ran_before + waited - waited_before);
    return share_;
}

namespace {

std::string likely_cause(const SlowSteps::Times& now, const SlowSteps::Times& best) {
    const double half = (now.step - best.step) / 2;
    if (now.share < 0.8 * best.share)
        return format("the threads of this process ran in only %.0f %% of the time in which they were ready to run: "
                      "other programs, or too many --threads, compete for its cores", 100 * now.share);
    if (now.data - best.data > half) return "it waits for training data: the disk or the network is slow";
    if (now.ranks - best.ranks > half) return "it waits for other ranks: one of them, or the network, is slow";
    return "it waits no longer for data, other ranks or its cores: the processor or the GPU may run at reduced clocks, "
           "or share memory or a virtual machine's host with other programs";
}

}  // namespace

std::optional<std::string> SlowSteps::warning(const Times& times, double seconds) {
    if (warned_) return {};
    last_.push_back(times);
    seconds_ += seconds;
    if (last_.size() < kSteps || seconds_ < kSeconds) return {};
    const auto median = [&](double Times::* part) {
        const auto middle = last_.begin() + std::ptrdiff_t(last_.size() / 2);
        std::ranges::nth_element(last_, middle, {}, part);
        return (*middle).*part;
    };
    const Times now{median(&Times::step), median(&Times::data), median(&Times::ranks), median(&Times::share)};
    last_.clear();
    seconds_ = 0;
    if (!best_ || now.step < best_->step) best_ = now;
    warned_ = now.step >= 2 * best_->step;
    if (!warned_) return {};
    return format("a step takes %.2g times as long as before (medians of %d steps or more): ", now.step / best_->step,
                  int(kSteps)) + likely_cause(now, *best_) + " (llmc/RUN_HEALTH.md, \"Why is my run slow?\")";
}

}  // namespace llmc
