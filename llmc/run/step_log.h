// step_log.h - reports every step when its numbers have come back from the device: at once on a CPU, else while the
// next step is under way
#pragma once
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

    // The step has been enqueued: reports the one before, and this one too if its numbers are there already.
    // Throws a run-time Error when the loss or the norm has not been finite for kMostFailedSteps steps in a row.
    void enqueued(const Report::Step& step, double began_seconds);
    // Reports the last step, after waiting for it.
    void flush() { report_pending(0); }

    static constexpr int kMostFailedSteps = 10;
    int failed_in_a_row() const { return failed_in_a_row_; }  // of the steps reported, the last ones
    void restore(int failed_in_a_row) { failed_in_a_row_ = failed_in_a_row; }

private:
    struct Pending {
        Report::Step step;
        double began_seconds;
    };
    void report_pending(int steps_back);
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
    double last_seconds_ = 0;  // when the step before was reported
    int failed_in_a_row_ = 0;
};

}  // namespace llmc
