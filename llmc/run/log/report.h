// report.h - what a run tells: for everything that happens a line on the terminal and an event in log.jsonl, one JSON
// object a line, each written through at once
//
//     step         |     loss |       lr |     norm |   ms/step |   tok/s |    done |     left
//     step 0/3045  |   5.6116 | validation over 215408 tokens   |   48.9k | 8.0903 bits a byte
//     step 1/3045  |   5.5953 | 1.50e-05 |   2.7813 |      59.1 |   17.3k |   0.0 % |      n/a
//
// {"event":"start", options, versions, device, model, data}   {"event":"step","step":1,"loss":..,...}   "val",
//     "hellaswag", "sample", "checkpoint", "checkpoint_failed", "skip", "stage", "stage_speed", "resume", "end"
// A step's number counts from 1, on the terminal and in the log; that of other events is the number of steps made so
// far. "resume" takes back what the log has of higher numbers than its own.
// A number that is unknown or not finite is null, never invented.
#pragma once
#include <exception>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "kernels/grad_norm.h"
#include "llmc/base/line_file.h"
#include "llmc/comm/comm_stream.h"
#include "llmc/run/gpu_facts.h"
#include "llmc/run/hellaswag.h"
#include "llmc/run/noise_scale.h"
#include "llmc/run/throughput.h"

namespace llmc {

inline constexpr const char* kLogName = "log.jsonl";
// In "start". Before 2 there was none, and the number of a "step" or "skip" counted from 0.
inline constexpr int kLogVersion = 2;

// Throws Error where the folder, "" being none, holds the log of a run. An empty one is of a run that found no room for
// its first line.
void require_free_log(const std::string& output_dir);

// What of it is on the terminal.
struct ReportLines {
    std::int64_t log_every = 1;        // steps from a step's line to the next
    bool mfu = false, noise = false;   // columns
    std::string way_on{};              // what to do to go on with a run that was ended before its last step
};

class Report {
public:
    // Makes the folder and log.jsonl in it; without a folder events go nowhere. Throws Error if that cannot be done or
    // if the folder holds the log of another run. total_steps is for the progress. Only one rank of a run speaks.
    // `appends`: to the log that is there, of the run that this one goes on with; a line that was not written to its
    // end goes.
    Report(const std::string& output_dir, std::int64_t total_steps, bool speaks = true, bool appends = false,
           const ReportLines& lines = {});

    // The run-time Error of the first event that could not be written; later ones are not tried. The run goes on until
    // all ranks know of it, and saves its model.
    const std::exception_ptr& failure() const { return failure_; }

    void start(const nlohmann::ordered_json& event) { write(event); }
    // From here on a step has "gpu", its last reading; null: nothing tells it.
    void log_gpu(std::unique_ptr<GpuWatch> watch) {
        gpu_ = std::move(watch);
        logs_gpu_ = true;
    }

    // The noise scale so far.
    struct Noise {
        NoiseScale::Report whole;
        double sequences_per_token;                            // valid tokens
        std::vector<std::pair<std::string, double>> modules;    // noise scale in valid tokens, by module; NaN: unknown
    };
    struct Step {
        std::int64_t step = 0;             // its number is one more: it counts from 1
        std::int64_t epoch = 0, positions = 0;
        std::int64_t tokens_so_far = 0;    // positions trained on, this step included
        kernels::StepScalars scalars{};
        const char* stage = "";            // of the optimizer, if it has several
        Throughput::Reading speed;
        std::optional<double> seconds_left;
        std::optional<Noise> noise;
        // since the step before was reported: parts of it may belong to the next step
        std::optional<CommTimes> communication;
        std::int64_t bytes_sent = 0;  // by this rank, for this step alone (Communicator::bytes_sent())
    };
    void step(const Step& step);
    // Before the first step of a stage (Optimizer::stage()); `step`: how many were made before it.
    void stage_begins(std::int64_t step, const std::string& stage);
    // Once the stage has lasted a while, and so had the one before: medians of milliseconds a step.
    void stage_speed(std::int64_t step, const std::string& stage, double ms_before, double ms);
    void validation(std::int64_t step, double loss, std::int64_t targets, double seconds,
                    std::optional<double> bits_per_byte);
    void hellaswag(std::int64_t step, const HellaSwagScore& score);
    void sample(std::int64_t step, const std::string& text);
    // `waited_seconds`: what training lost to it, beside slower steps.
    void checkpoint(std::int64_t step, const std::string& folder, double waited_seconds);
    void checkpoint_failed(std::int64_t step, const std::string& reason);
    // Whether the folder was deleted or moved away: what lies there now may be another run's. Rank 0 knows.
    bool folder_is_lost() const { return log_ && log_->lost(); }
    // What the log has of steps from `step` on is made again. `folder`: the checkpoint; empty: from the start.
    void resume(std::int64_t step, const std::string& folder, const std::vector<std::string>& changes);
    bool appended() const { return appended_; }  // to a log that was there
    void end(std::int64_t steps, const std::string& reason, double seconds);

private:
    std::string place(std::int64_t step) const;  // "step 12/500"
    std::string at(std::int64_t step) const;     // the same, as wide for every step
    void say(const std::string& line) const;
    void say_row(const std::string& row);     // of the table, below its header now and then
    void say_last_row();                      // of a step, unless it has been said
    std::string header() const;
    bool shows(std::int64_t step);            // of this number, in order
    void write(const nlohmann::ordered_json& event);  // one line of the log

    std::int64_t total_steps_;
    bool speaks_;
    bool appended_ = false;
    ReportLines lines_;
    int rows_ = 0;                  // since the last header
    std::string last_row_;          // of the last step, unless it has been said
    bool stepped_ = false;
    std::int64_t saved_step_ = -1;  // of the last checkpoint
    std::unique_ptr<LineFile> log_;
    std::unique_ptr<GpuWatch> gpu_;
    bool logs_gpu_ = false;
    std::exception_ptr failure_;
};

}  // namespace llmc
