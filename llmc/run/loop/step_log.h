// step_log.h - reports every step once its results are back from the device: at once on a CPU, on a GPU while the next
// step runs
#pragma once
#include <algorithm>
#include <optional>
#include <utility>

#include "llmc/base/clock.h"
#include "llmc/run/log/slow_steps.h"
#include "llmc/run/loop/loop.h"

namespace llmc {

class StepLog {
public:
    // `loop.health` sees every step that is reported. The optimizer must outlive it.
    StepLog(Loop& loop, OptimizerStep& optimizer);

    // A step begins: its time and bytes sent count from here.
    void begin() {
        began_ = {seconds_now(), loop_.context.world->bytes_sent()};
        lap_ = {began_.seconds, waited()};
    }
    // The seconds since begin() or the last call, without those in which a CPU waited for communication.
    double lap() {
        const auto [seconds, before] = std::exchange(lap_, {seconds_now(), waited()});
        return std::max(lap_.seconds - seconds - (lap_.waited - before), 0.0);
    }
    // The step has been enqueued: reports the step before, and this one too if its results are available.
    void enqueued(const Report::Step& step);
    // Waits for the last step and reports it.
    void flush() { report(0); }

    // Of this many positions, by a mean over the last steps; empty at first, because the first steps may take longer.
    std::optional<double> seconds_of(std::int64_t positions) const {
        constexpr int kTimed = 10;
        return throughput_.steps() > kTimed ? throughput_.seconds_left(positions) : std::nullopt;
    }
    const NoiseScale& noise() const { return noise_.scale(); }
    // The number of steps that phase_speed() compares.
    static constexpr std::size_t kPhaseSteps = 20;
    // At the end of the run, after `steps` steps: compares fewer steps, unless this has been done.
    void end(std::int64_t steps) {
        if (!ms_before_.empty() && !phase_ms_.empty()) compare_phases(steps);
    }

private:
    struct Pending {
        Report::Step step;
        double began;
    };
    double waited() const {  // on a GPU the host does not wait
        const auto times = device::memory_is_host_memory() ? loop_.context.world->times() : std::nullopt;
        return times ? times->waited : 0;
    }
    // The pending step, if there is one. `ended`: of seconds_now(); 0: when the device had ended it.
    void report(int steps_back, double ended = 0);
    void follow_phase(const Report::Step& step);
    void compare_phases(std::int64_t steps);
    Report::Noise noise_so_far(const Report::Step& step) const;

    Loop& loop_;
    OptimizerStep& optimizer_;
    Throughput throughput_;
    StepNoise noise_;
    CommTimes times_{};  // at the last report
    ProcessorShare share_;
    SlowSteps slow_;
    std::optional<Pending> pending_;  // the last step, unless it has been reported
    const char* phase_ = "";  // of the step before
    std::vector<double> phase_ms_, ms_before_;  // the last kPhaseSteps of this phase; of the phase before
    struct {
        double seconds = 0;  // of seconds_now()
        std::int64_t bytes_sent = 0;
    } began_;                            // at the last begin()
    struct {
        double seconds = 0, waited = 0;  // of seconds_now(); for communication
    } lap_;                              // at the last begin() or lap()
    double last_seconds_;                // seconds_now() at the end of the last step
};

}  // namespace llmc
