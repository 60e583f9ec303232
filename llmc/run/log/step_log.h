// step_log.h - reports every step once its results are back from the device: at once on a CPU, on a GPU while the next
// step runs
#pragma once
#include <algorithm>
#include <exception>
#include <optional>
#include <utility>

#include "llmc/base/clock.h"
#include "llmc/comm/communicator.h"
#include "llmc/data/step_plan.h"
#include "llmc/model/optimizer.h"
#include "llmc/run/log/module_noise.h"
#include "llmc/run/log/report.h"

namespace llmc {

class StepLog {
public:
    struct Settings {
        StepPlan steps;
        bool measures_noise;  // of every step that was not skipped
    };
    // Optimizer, report and communicator must outlive it.
    StepLog(const Settings& settings, const Throughput& throughput, ModuleNoise noise, const OptimizerStep& optimizer,
            Report& report, const Communicator& communicator)
        : settings_(settings),
          throughput_(throughput),
          noise_(std::move(noise)),
          optimizer_(optimizer),
          report_(report),
          communicator_(communicator) {}

    // A step begins: its time and bytes sent count from here.
    void begin() { began_ = {run_clock(), communicator_.bytes_sent()}; }
    // Ranks were stopped for so long; the step that is being made does not count it. What is longer than the step so
    // far was in the one before, which has been reported.
    void leave_out(double seconds) {
        left_out_ += std::min(seconds, run_clock() - std::max(last_seconds_, began_.seconds));
    }
    // The step has been enqueued: reports the step before, and this one too if its results are available.
    void enqueued(const Report::Step& step);
    // Waits for the last step and reports it.
    void flush() { report_pending(0); }

    static constexpr int kMostFailedSteps = 10;
    // The size of the outlier window: after that many skipped steps it no longer describes the data or the model. Ten
    // would end a run at a range of bad data, after which, unlike after a divergence, losses are normal again.
    static constexpr int kMostStepsWithoutUpdate = kernels::OutlierWindow::kSize;
    // Of the steps reported last, in a row: how many failed (a loss or norm that is not finite), and how many made no
    // update (failed or outliers). Steps without targets do not count.
    struct InARow {
        int failed = 0, without_update = 0;
        bool operator==(const InARow&) const = default;
    };
    const InARow& in_a_row() const { return in_a_row_; }
    const ModuleNoise& noise() const { return noise_; }
    // Of a resumed run. `noise`: ModuleNoise::averages(); empty: not measured so far.
    void restore(const InARow& in_a_row, const std::vector<NoiseAverages>& noise) {
        in_a_row_ = in_a_row;
        if (!noise.empty()) noise_.restore(noise);
    }
    // The run-time Error after kMostFailedSteps failed steps in a row, or kMostStepsWithoutUpdate without an update;
    // after flush() the same on all ranks.
    const std::exception_ptr& failure() const { return failure_; }
    // After kMostFailedSteps: the model is not saved, even if its weights are finite.
    bool diverged() const { return in_a_row_.failed >= kMostFailedSteps; }

    // The number of steps that phase_speed() compares.
    static constexpr std::size_t kPhaseSteps = 20;
    // At the end of the run, after `steps` steps: compares fewer steps, unless this has been done.
    void end(std::int64_t steps) {
        if (!ms_before_.empty() && !phase_ms_.empty()) compare_phases(steps);
    }

private:
    struct Pending {
        Report::Step step;
        double began_seconds;
    };
    double run_clock() const { return seconds_now() - left_out_; }
    void report_pending(int steps_back);
    void count_skips(const Report::Step& step);
    void follow_phase(const Report::Step& step);
    void compare_phases(std::int64_t steps);
    Report::Noise noise_so_far(const Report::Step& step) const;

    Settings settings_;
    Throughput throughput_;
    ModuleNoise noise_;
    const OptimizerStep& optimizer_;
    Report& report_;
    const Communicator& communicator_;
    CommTimes times_{};  // at the last report
    std::optional<Pending> pending_;
    const char* phase_ = "";  // of the step before
    std::vector<double> phase_ms_, ms_before_;  // the last kPhaseSteps of this phase; of the phase before
    struct {
        double seconds = 0;  // of run_clock()
        std::int64_t bytes_sent = 0;
    } began_;                                  // at the last begin()
    double last_seconds_ = 0, left_out_ = 0;  // run_clock() at the last report; seconds of stops
    InARow in_a_row_{};
    std::exception_ptr failure_;
};

}  // namespace llmc
