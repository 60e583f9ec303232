// step_log.h - reports every step when its numbers have come back from the device: at once on a CPU, else while the
// next step is under way
#pragma once
#include <exception>
#include <optional>

#include "llmc/comm/communicator.h"
#include "llmc/model/optimizer.h"
#include "llmc/run/report.h"
#include "llmc/run/run_noise.h"

namespace llmc {

class StepLog {
public:
    // All of them must outlive it. `noise` may be null; it is given every step that was not skipped.
    StepLog(const Optimizer& optimizer, Throughput& throughput, Report& report, const Communicator& communicator,
            std::int64_t total_steps, RunNoise* noise, int seq_len)
        : optimizer_(optimizer),
          throughput_(throughput),
          report_(report),
          communicator_(communicator),
          total_steps_(total_steps),
          noise_(noise),
          seq_len_(seq_len) {}

    // Where clock and communicator stood as a step began.
    struct Begin {
        double seconds;
        std::int64_t bytes_sent;
    };
    Begin begin() const { return {seconds_now(), communicator_.bytes_sent()}; }
    // The step has been enqueued: reports the one before, and this one too if its numbers are there already.
    // Throws a run-time Error when the loss or the norm has not been finite for kMostFailedSteps steps in a row.
    void enqueued(const Report::Step& step, const Begin& began);
    // Reports the last step, after waiting for it.
    void flush() { report_pending(0); }

    static constexpr int kMostFailedSteps = 10;
    // As many as the outlier window holds, which then tells nothing any more of the data or the model. Ten would end a
    // run at a stretch of bad data; other than numbers that are not finite, outliers pass with it.
    static constexpr int kMostStepsWithoutUpdate = kernels::OutlierWindow::kSize;
    // Of the steps reported, the last ones: whose loss or norm was not finite; that were skipped for it or as outliers,
    // those without targets not counted.
    struct InARow {
        int failed = 0, without_update = 0;
        bool operator==(const InARow&) const = default;
    };
    const InARow& in_a_row() const { return in_a_row_; }
    void restore(const InARow& in_a_row) { in_a_row_ = in_a_row; }
    // The run-time Error, the same on all ranks, once kMostStepsWithoutUpdate were skipped in a row: the run ends, and
    // saves its model, which is sound.
    const std::exception_ptr& failure() const { return failure_; }

    // So many steps of each stage of an optimizer say how fast it is.
    static constexpr std::size_t kStageSteps = 20;

private:
    struct Pending {
        Report::Step step;
        double began_seconds;
    };
    void report_pending(int steps_back);
    void count_skips(std::int32_t skip);
    void follow_stage(const Report::Step& step);
    Report::Noise noise_so_far(const Report::Step& step) const;

    const Optimizer& optimizer_;
    Throughput& throughput_;
    Report& report_;
    const Communicator& communicator_;
    CommTimes times_{};  // when the step before was reported
    std::int64_t total_steps_;
    RunNoise* noise_;
    int seq_len_;
    std::optional<Pending> pending_;
    const char* stage_ = "";  // of the step before
    std::vector<double> stage_ms_, ms_before_;  // of steps of this stage, at most kStageSteps, and of the one before
    double last_seconds_ = 0;  // when the step before was reported
    InARow in_a_row_{};
    std::exception_ptr failure_;
};

}  // namespace llmc
