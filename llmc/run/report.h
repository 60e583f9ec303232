// report.h - what a run tells: one line on the terminal and one event in the log for everything that happens
#pragma once
#include "kernels/grad_norm.h"
#include "llmc/comm/comm_stream.h"
#include "llmc/run/log.h"
#include "llmc/run/noise_scale.h"
#include "llmc/run/throughput.h"

namespace llmc {

class Report {
public:
    // Opens the log (see Log); total_steps is for the progress. Only one rank of a run speaks.
    Report(const std::string& output_dir, std::int64_t total_steps, bool speaks = true)
        : log_(speaks ? output_dir : std::string()), total_steps_(total_steps), speaks_(speaks) {}

    void start(const nlohmann::ordered_json& event) { log_.write(event); }

    // The noise scale so far.
    struct Noise {
        NoiseScale::Report whole;
        double sequences_per_token;                            // valid tokens
        std::vector<std::pair<std::string, double>> modules;    // noise scale in valid tokens, by module; NaN: unknown
    };
    struct Step {
        std::int64_t step = 0;             // from 0
        std::int64_t epoch = 0, positions = 0;
        std::int64_t tokens_so_far = 0;    // positions trained on, this step included
        kernels::StepScalars scalars{};
        Throughput::Reading speed;
        std::optional<double> seconds_left;
        std::optional<Noise> noise;
        // since the step before was reported: parts of it may belong to the next step
        std::optional<CommTimes> communication;
    };
    void step(const Step& step);
    void validation(std::int64_t step, double loss, std::int64_t targets, double seconds);
    void sample(std::int64_t step, const std::string& text);
    void checkpoint(std::int64_t step, const std::string& folder);
    void end(std::int64_t steps, const std::string& reason, double seconds);

private:
    std::string at(std::int64_t step) const;  // "step 12/500"
    void say(const std::string& line) const;

    Log log_;
    std::int64_t total_steps_;
    bool speaks_;
};

}  // namespace llmc
