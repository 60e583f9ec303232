// slow_steps.h - why steps are slow: the share of the processor that the threads of this process get, and a warning
// when steps take twice as long as before
#pragma once
#include <cmath>
#include <optional>
#include <string>
#include <vector>

namespace llmc {

// Of the time in which the threads of this process were ready to run, the share in which they ran: 1 if nothing
// competes for their cores, 0.5 if each shares its core with another thread. Time in which they sleep does not count,
// so waiting for each other, for data or for a GPU does not lower it. The kernel counts both times in
// /proc/PID/task/*/schedstat.
class ProcessorShare {
public:
    ProcessorShare() { latest(0); }
    // Since the last reading, at least a second before: a reading takes about 10 us per thread. NaN: there is none yet;
    // empty: the kernel does not count.
    std::optional<double> latest(double least_seconds = 1);

private:
    double read_ = 0;              // seconds_now()
    double ran_ = 0, waited_ = 0;  // ns of all threads then: that they ran, that they waited for a core
    std::optional<double> share_ = NAN;
};

class SlowSteps {
public:
    // Of a step: seconds per position, so that steps of any size compare, and ProcessorShare.
    struct Times {
        double step, data, ranks, share;  // waiting for data, for other ranks
    };
    // Once: when the median of at least kSteps steps and kSeconds is twice the lowest such median so far. Names the
    // likely cause. `seconds`: of the whole step.
    std::optional<std::string> warning(const Times& times, double seconds);

    static constexpr std::size_t kSteps = 50;
    static constexpr double kSeconds = 5;  // shorter disturbances do not matter to a run

private:
    std::vector<Times> last_;  // since the last median
    double seconds_ = 0;       // of these
    std::optional<Times> best_;
    bool warned_ = false;
};

}  // namespace llmc
