// options.h - the command line. One table (options.cpp) drives --help, parsing, error messages, the printed options and
// the log
#pragma once
#include <cmath>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/attention/attention.h"
#include "kernels/matmul/matmul.h"
#include "llmc/base/names.h"
#include "llmc/comm/placement.h"
#include "llmc/data/step_plan.h"
#include "llmc/model/activations.h"
#include "llmc/model/optimizer.h"

namespace llmc {

struct Option;
struct Needs;

inline constexpr Named<kernels::DType> kDTypes[] = {{"fp32", kernels::DType::fp32}, {"bf16", kernels::DType::bf16}};
inline constexpr Named<kernels::Bf16Arithmetic> kBf16Arithmetics[] = {{"measure", kernels::Bf16Arithmetic::measure},
                                                                      {"native", kernels::Bf16Arithmetic::native},
                                                                      {"widen", kernels::Bf16Arithmetic::widen}};

// Algorithms: the library's default; stored autotuning results, timed if missing; all timed again.
enum class Tune { off, automatic, again };
inline constexpr Named<Tune> kTunes[] = {{"off", Tune::off}, {"auto", Tune::automatic}, {"again", Tune::again}};

enum class LrSchedule { cosine, linear, constant, wsd };
inline constexpr Named<LrSchedule> kLrSchedules[] = {{"cosine", LrSchedule::cosine},
                                                     {"linear", LrSchedule::linear},
                                                     {"constant", LrSchedule::constant},
                                                     {"wsd", LrSchedule::wsd}};

enum class CooldownShape { linear, one_minus_sqrt };
inline constexpr Named<CooldownShape> kCooldownShapes[] = {{"linear", CooldownShape::linear},
                                                           {"1-sqrt", CooldownShape::one_minus_sqrt}};

enum class NoiseEstimator { off, automatic, rank, micro };
inline constexpr Named<NoiseEstimator> kNoiseEstimators[] = {{"off", NoiseEstimator::off},
                                                             {"auto", NoiseEstimator::automatic},
                                                             {"rank", NoiseEstimator::rank},
                                                             {"micro", NoiseEstimator::micro}};

struct Options {
    // Data and model
    std::vector<std::string> train_data, val_data;  // globs of shards
    std::string init = "d12";               // a name of model_config.h, or a path
    std::string output_dir;                 // empty: nothing is written
    // Batch and length of the run
    std::int64_t micro_batch = 4;           // 0: auto, until a run has planned its memory
    std::int64_t seq_len = 0;               // 0: auto, until a run knows its model
    std::int64_t total_batch_tokens = 0;    // 0: one micro-batch per rank
    std::string batch_schedule;             // sizes_of_steps(); empty: all steps have total_batch_tokens
    double batch_lr_exponent = 0.5;
    bool batch_beta_scaling = false;
    std::int64_t max_steps = 0, max_tokens = 0;  // at most one of them; both 0: from epochs or max_minutes
    std::int64_t epochs = 0;                // used if both are 0; 0: auto
    double max_minutes = 0;                 // 0: no limit
    bool shuffle = false, mask_document_start = false, pad_last = false, overfit_batch = false;
    // Optimizer
    double lr = 6e-4;
    std::int64_t warmup_steps = 0, warmup_tokens = 0;  // at most one of them
    double final_lr_fraction = 0.1;
    LrSchedule lr_schedule = LrSchedule::cosine;
    double cooldown_fraction = 0.2;         // of the run, in the wsd schedule
    CooldownShape cooldown_shape = CooldownShape::linear;
    double weight_decay = 0.1, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, grad_clip = 1;
    double skip_loss_z = 0, skip_norm_z = 0;  // 0: off
    const OptimizerKind* optimizer = &kAdamW;
    std::any of_optimizers[std::size(kOptimizers)];  // own flags, in that order; filled by option_table()
    // Outer steps
    std::int64_t outer_steps = 0, outer_start_step = 0;  // 0: no outer steps; no data-parallel ones
    std::int64_t outer_workers = 0;                      // 0 (auto): every rank is a worker
    double outer_lr = NAN, outer_momentum = NAN;         // auto
    std::int64_t outer_bits = 32;           // 32, 4 or 1
    bool outer_errors = false;
    double outer_error_decay = 0.9;
    // Evaluation and samples
    std::int64_t val_every = 250, val_tokens = 10485760;  // val_every 0: off
    bool val_spread = true;
    std::int64_t stop_after = 0;            // validations; 0: off
    std::int64_t sample_every = 0, sample_tokens = 64, samples = 1;
    std::string prompt;
    std::int64_t top_k = 50;
    double top_p = 1, temperature = 1;
    bool eval_only = false;
    std::string hellaswag;                  // file; empty: off
    std::int64_t hellaswag_every = 250;
    // Checkpoints
    std::int64_t checkpoint_every = 0;      // 0: only at the end
    double checkpoint_minutes = 0;          // 0: off
    std::int64_t keep_checkpoints = 0;      // 0: all
    std::int64_t major_every = 0;           // 0: off
    bool keep_best = false;
    std::string resume;                     // never, auto, or a folder; empty: as never
    bool allow_new_data = false;
    // Tokenizer
    std::string merges;                     // file; empty: found automatically
    bool allow_larger_vocabulary = false;
    // Data-parallel training
    std::int64_t zero_stage = 0;
    kernels::DType reduce_dtype = kernels::DType::fp32;
    Transport comm = Transport::automatic;
    NoiseEstimator noise_scale = NoiseEstimator::automatic;
    double noise_scale_beta = 0.99;
    // Machine
    kernels::DType dtype = kernels::DType::fp32;
    Recompute recompute = Recompute::none;
    kernels::AttentionMethod attention = kernels::AttentionMethod::automatic;
    kernels::Bf16Arithmetic bf16_arithmetic = kernels::Bf16Arithmetic::measure;
    std::int64_t threads = 0, device = 0, seed = 1337;
    Tune tune = Tune::automatic;
    std::string tune_file;                  // empty: the user's
    bool stochastic_rounding = false, tf32 = false, deterministic = false, ignore_memory_plan = false;
    // Other
    std::int64_t log_every = 1;             // steps, on the terminal
    bool log_gpu = false, verbose = false, dry_run = false;
    std::int64_t ranks = 0;                 // of the dry run; 0: those that were started
    std::string memory;                     // of its ranks, see memory_bytes(); empty: that of this machine

    // The length of the run is max_minutes, not a number of steps.
    bool is_timed() const { return max_minutes > 0 && !has_steps() && epochs == 0; }
    // The length of the run is a number of steps or tokens.
    bool has_steps() const { return max_steps > 0 || max_tokens > 0; }
    bool plans_elsewhere() const { return dry_run && (ranks > 0 || !memory.empty()); }  // needs no data
    // Over the training data, if the length is neither a number of steps nor a time.
    std::int64_t passes() const { return epochs > 0 ? epochs : 1; }
};

enum class Request { run, help, version, print_config };

// What the command line asks for: the defaults, then the file of --config, then the flags.
struct CommandLine {
    Request request = Request::run;
    Options options{};
    std::set<std::string> given{};  // long names without dashes of what a flag or the file of --config sets

    bool resumes() const { return !options.resume.empty() && options.resume != "never"; }
};
// Throws Error that names the flag, the value, what was expected and how to fix it. With --resume, whether the options
// can be combined is not checked: continued() adds those of the checkpoint first.
CommandLine parse(int argc, char** argv);
// The command line of a run that continues another: what is not given now is as in `before`, by long name as in
// to_json(). Names that this version does not know are left out. Throws Error that names `file`, where `before` is.
CommandLine continued(const CommandLine& now, const nlohmann::json& before, const std::string& file);
// Wrapped to the width of the terminal.
std::string help_text();
// The flags for these options (base/option.h), in the order of --help: parsing, --help, messages, files of options and
// the log are made from this table.
std::vector<Option> option_table(Options& options);
// Their long names, without dashes.
std::set<std::string> names_of_options(const std::function<bool(const Option&)>& which);
// "--lr", from "l,lr".
std::string long_name(std::string_view flag);
// As they are parsed, at least one; a switch as "on" or "off".
std::vector<std::string> values_of(const Option& option);
// The first value of the flag with this long name, which must exist; whether a need is met.
std::string value_of(const std::string& name, const std::vector<Option>& table);
bool is_met(const Needs& needs, const std::vector<Option>& table);
// Sets the field. Throws Error that starts with `name` if a value is outside its limits, or there are several for a
// flag that takes one. Empty ones of a list are left out.
void set_values(const Option& option, const std::string& name, const std::vector<std::string>& values);
// Quoted for a shell if needed, on one line.
std::string for_shell(const std::string& text);
// "--lr=0.0003", quoted for a shell if needed, one for each value, in the order of --help: the options that differ from
// their defaults, or, without `changed`, all others.
std::vector<std::string> flags_of(const Options& options, bool changed);
// The own settings of the optimizer, after this number of warm-up steps, on these nodes (OptimizerFlags). Throws Error
// for flags that cannot be combined.
std::any optimizer_settings(const Options& options, std::int64_t warmup_steps, std::span<const int> nodes);
// From --batch-schedule, or -d. Throws Error for anything but increasing entries FROM:TOKENS, the first one from 0.
BatchSchedule sizes_of_steps(const Options& options, std::int64_t ranks);
// The value of --memory in bytes; 0: not set. Throws Error for anything else.
std::size_t memory_bytes(const Options& options);
nlohmann::json to_json(const Options& options);
// For --config: a JSON object with all options, one a line, in the order of --help.
std::string config_text(const Options& options);
// Such a file, which every run writes to --output-dir.
inline constexpr const char* kOptionsName = "options.json";

}  // namespace llmc
