// report.h - everything a run reports: a line on the terminal and an event in log.jsonl, one JSON object per line, each
// written at once
//
//     step 0/3045    | validation   5.6116 | 8.0903 bits per byte
//     step           |    loss       lr   norm ms/step  tok/s   left
//     step 1/3045    |  5.5953 1.50e-05  2.781   59.1  17.3k    n/a
//
// The table fits into 80 columns for up to 9,999,999 steps.
//
// The events and their fields: llmc/RUNS.md, "Output of a run".
#pragma once
#include <exception>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "kernels/device/memory.h"
#include "kernels/grad_norm.h"
#include "llmc/base/line_file.h"
#include "llmc/base/option.h"
#include "llmc/comm/comm_stream.h"
#include "llmc/data/step_plan.h"
#include "llmc/model/optimizer.h"
#include "llmc/run/evaluation/hellaswag.h"
#include "llmc/run/log/gpu_monitor.h"
#include "llmc/run/log/noise_scale.h"
#include "llmc/run/log/throughput.h"

namespace llmc {

inline constexpr const char* kLogName = "log.jsonl";
// In "start". Logs before version 2 have no version, and the numbers of "step" and "skip" count from 0 there.
inline constexpr int kLogVersion = 2;

// Throws Error if the folder ("": no folder) holds the log of a run. An empty log is accepted: a run on a full disk
// leaves one behind.
void require_free_log(const std::string& output_dir);

// Opens the log in the folder, so that no other run can write there. Throws Error if another run does. If it cannot be
// opened, throws Error with `creates`, which makes one if there is none; otherwise returns null.
std::unique_ptr<LineFile> open_log_file(const std::string& output_dir, bool creates);

// --max-minutes for training further: twice as many, or as often doubled as it takes to exceed the seconds used.
double longer_minutes(double minutes, double seconds);

struct ReportSettings {
    std::int64_t log_every = 1;  // steps, on the terminal
    bool log_gpu = false, verbose = false;
};
void add_options(OptionList& list, ReportSettings& settings);

// What the terminal shows.
struct ReportLines {
    std::int64_t log_every = 1;       // steps from one step's line to the next
    bool mfu = false, noise = false;  // columns
    std::string resume_command{};     // how to resume the run
    double max_minutes = 0;           // the length of a run without a number of steps
};

// Pattern and loss of each validation set.
using SetLosses = std::vector<std::pair<std::string, double>>;

class Report {
public:
    // Creates the folder and log.jsonl in it; without a folder there is no log. Throws Error if that fails or the
    // folder holds the log of another run. Without total_steps, --max-minutes ends the run, or it is --eval-only. Only
    // one rank prints and logs (`prints`). `appends`: to the existing log, because this run resumes the one that wrote
    // it; an incomplete last line is removed. `log`: if it is open.
    Report(const std::string& output_dir, std::optional<std::int64_t> total_steps, bool prints = true,
           bool appends = false, const ReportLines& lines = {}, std::unique_ptr<LineFile> log = nullptr);

    // The run-time Error of the first event that could not be written; later events are not tried. The run continues
    // until all ranks know, and then saves its model.
    const std::exception_ptr& failure() const { return failure_; }

    void start(const nlohmann::ordered_json& event) { write(event); }
    // From here on every step has "gpu", the last reading; with a null monitor it is null: the driver cannot be asked.
    void log_gpu(std::unique_ptr<GpuMonitor> monitor) {
        gpu_ = std::move(monitor);
        logs_gpu_ = true;
    }

    // The noise scale so far.
    struct Noise {
        NoiseScale::Estimate estimate;
        double sequences_per_token;                           // valid tokens
    };
    // Of a run with --max-minutes.
    struct Progress {
        double share;         // of the time that is used
        double seconds_left;  // with the end of the run
        bool is_length = true;  // of the run, which has no number of steps
    };
    // Seconds of the host, without waits for communication. On a GPU it only enqueues `passes` and `optimizer`.
    struct Parts {
        double tasks = 0;      // between the step before and this one
        double data = 0;       // waiting for micro-batches
        double passes = 0;     // forward and backward
        double agreement = 0;  // the ranks wait for the last one
        double optimizer = 0;
    };
    struct Step {
        StepSize size;
        std::int64_t epoch = 0;
        kernels::StepScalars scalars{};  // of a local step: of this rank's worker
        const char* phase = "";          // of the optimizer; "": it has only one
        Throughput::Reading speed;
        std::optional<Progress> progress;
        double seconds_of_tasks = 0;     // that follow it (Tasks::seconds_left())
        std::optional<double> seconds_left;  // with them
        Parts parts{};
        std::optional<double> cpu_share; // ProcessorShare; NaN: not known yet
        std::optional<Noise> noise;
        // since the report of the step before: parts of it may belong to the next step
        std::optional<CommTimes> communication;
        double waited() const {          // seconds for other ranks
            return communication ? communication->waited + (device::memory_is_host_memory() ? parts.agreement : 0) : 0;
        }
        std::int64_t bytes_sent = 0;     // by this rank, for this step alone (Communicator::bytes_sent())
    };
    void step(const Step& step);
    // Before the first step of an optimizer phase (Optimizer::phase()), after `made` steps.
    void phase_begins(std::int64_t made, const std::string& phase, const char* what_begins);
    // Compares `steps` of the phase with the one before it: medians of milliseconds per step.
    void phase_speed(std::int64_t made, const std::string& phase, double ms_before, double ms, std::size_t steps);
    void outer(const OuterRound& round);
    // `best`: lower than all before. `sets`: reported if there are several.
    void validation(std::int64_t made, double loss, std::int64_t targets, double seconds,
                    std::optional<double> bits_per_byte, bool best = false,
                    const SetLosses& sets = {});
    struct Warning {
        const char* kind;  // in the log
        std::string text;
    };
    // After `made` steps.
    void warn(std::int64_t made, const Warning& warning);
    void hellaswag(std::int64_t made, const HellaSwagScore& score);
    void sample(std::int64_t made, const std::string& text);
    // `waited_seconds`: how long training waited for it.
    void checkpoint(std::int64_t made, const std::string& folder, double waited_seconds);
    void checkpoint_failed(std::int64_t made, const std::string& reason);
    // Whether the folder was deleted or moved: a folder of that name may now be another run's. Only rank 0 knows.
    bool folder_is_lost() const { return log_ && log_->lost(); }
    // Training resumes after `made` steps. `folder`: of the checkpoint; empty: from the start.
    void resume(std::int64_t made, const std::string& folder, const std::vector<std::string>& changes);
    bool appended() const { return appended_; }  // to an existing log
    struct Best {
        double loss;         // the lowest of all validations,
        std::int64_t after;  // steps that its model had made
        std::string folder;
    };
    // `further`: how a run that is complete is made longer.
    void end(std::int64_t steps, const std::string& reason, double seconds, const std::optional<Best>& best = {},
             const std::vector<std::string>& further = {});

private:
    bool only_evaluates() const { return !total_steps_ && lines_.max_minutes == 0; }
    std::string place(std::int64_t made) const;  // "step 12/500", "step 12" or "evaluation"
    std::string at(std::int64_t made) const;     // the same, padded to the width of the last step's
    void print(const std::string& line) const;
    void print_row(const std::string& row);      // of the table; with its header every 30 rows
    void print_last_row();                       // of the last step, unless it has been printed
    std::string header() const;
    bool shows(std::int64_t step);               // whether the terminal shows this step; steps come in order
    void write(const nlohmann::ordered_json& event);  // with the time

    std::optional<std::int64_t> total_steps_;
    bool prints_;
    bool appended_ = false;
    ReportLines lines_;
    std::int64_t first_step_ = 0;   // steps made before this start
    std::int64_t positions_ = 0;    // of the steps of this start, in
    double step_seconds_ = 0;       // seconds
    int rows_ = 0;                  // since the last header
    std::string last_row_;          // of the last step; empty: printed
    bool stepped_ = false;
    double printed_ = 0;            // seconds_now() of the last row
    std::int64_t saved_step_ = -1;  // of the last checkpoint
    std::unique_ptr<LineFile> log_;
    std::unique_ptr<GpuMonitor> gpu_;
    bool logs_gpu_ = false;
    std::exception_ptr failure_;
};

}  // namespace llmc
