// run_settings.h - the settings of a run: those of its components, in one option table that drives parsing, --help,
// error messages, the printed options and the log
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "llmc/base/option.h"
#include "llmc/comm/placement.h"
#include "llmc/data/data_loader.h"
#include "llmc/data/step_settings.h"
#include "llmc/model/optimizer.h"
#include "llmc/model/precision.h"
#include "llmc/model/tuning.h"
#include "llmc/run/checkpoint/checkpoint_writer.h"
#include "llmc/run/control/schedule.h"
#include "llmc/run/evaluation/hellaswag.h"
#include "llmc/run/evaluation/text_sampler.h"
#include "llmc/run/evaluation/validation_loss.h"
#include "llmc/run/log/report.h"
#include "llmc/run/log/noise_scale.h"
#include "llmc/weights/model_path.h"

namespace llmc {

// A plan that is printed instead of the run.
struct DryRunSettings {
    bool plans = false;
    std::int64_t ranks = 0;  // 0: those that were started
    std::string memory{};    // of each, see memory_bytes(); empty: that of this machine
    std::int64_t tokens_per_second = 0;  // of all of them with this model; 0: not set
    double peak_tflops = 0;  // of each; 0: not set
    double price = 0;        // of an hour of all of them; 0: not set

    bool elsewhere() const { return plans && (ranks > 0 || !memory.empty()); }  // needs no data
};
void add_options(OptionList& list, DryRunSettings& settings);
// The value of --memory in bytes; 0: not set. Throws Error for anything else.
std::size_t memory_bytes(const DryRunSettings& dry_run);

struct RunSettings {
    DataSettings data{};
    ModelSettings model{};
    BatchSettings batch{};
    LengthSettings length{};
    ScheduleSettings schedule{};
    OptimizerSettings optimizer{};
    ValidationSettings validation{};
    SampleSettings samples{};
    HellaSwagSettings hellaswag{};
    CheckpointSettings checkpoints{};
    ExchangeSettings exchange{};
    PlacementSettings placement{};
    NoiseSettings noise{};
    PrecisionSettings precision{};
    AlgorithmSettings algorithms{};
    ReportSettings report{};
    DryRunSettings dry_run{};
    bool eval_only = false;
    std::int64_t seed = 1337;  // of initial weights, shuffling, samples and stochastic rounding
    Decided decided{};         // of the flags that a run chooses, those that have a value
};
// `settings`, in which the flags that a run could choose have the values of their fields.
RunSettings all_decided(RunSettings settings);

// The flags for these settings, which must outlive it.
OptionList option_table(RunSettings& settings);
// The settings of the optimizer that is selected, after this number of warm-up steps, on these nodes (OptimizerFlags).
// Throws Error for flags that cannot be combined.
std::any optimizer_settings(const RunSettings& settings, std::int64_t warmup_steps, std::span<const int> nodes);
// Throws Error if flags cannot be combined. `given`: long names of what a flag or the file of --config sets.
void check_together(const RunSettings& settings, const std::set<std::string>& given);

// "--lr=0.0003", quoted for a shell if needed, one for each value, in the order of --help: the options that differ from
// their defaults, or, without `changed`, all others.
std::vector<std::string> flags_of(const RunSettings& settings, bool changed);
nlohmann::json to_json(const RunSettings& settings);
// For --config: a JSON object with all options, one a line, in the order of --help.
std::string config_text(const RunSettings& settings);
// Such a file, which every run writes to --output-dir.
inline constexpr const char* kOptionsName = "options.json";

}  // namespace llmc
