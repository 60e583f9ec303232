// run_settings.cpp - the option table of a run, and the checks that concern several components
#include "llmc/run/options/run_settings.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <tuple>

#include "kernels/base/error.h"
#include "kernels/device/device.h"
#include "llmc/base/file_status.h"
#include "llmc/base/json_text.h"
#include "llmc/base/value_text.h"
#include "llmc/model/outer_steps.h"

namespace llmc {

void add_options(OptionList& list, DryRunSettings& s) {
    list.group("Other");
    list.entry("dry-run", s.plans,
        "print all options, the data, the memory plan, speed, time, disk and links, then exit",
        OnResume::of_one_start);
    list.entry("ranks", s.ranks,
        "with --dry-run: plan for this number of ranks, also without data; 0: for those that were started",
        Whole{0, 1 << 20}, OnResume::of_one_start);
    list.entry("memory", s.memory,
        "with --dry-run: plan for ranks with this memory each, such as 80G, an 80 GB card's, or 81559M (MiB); empty: "
        "that of this machine",
        OnResume::of_one_start);
    list.entry("speed", s.tokens_per_second,
        "with --dry-run: tokens/s of this model on all ranks together, instead of a measurement here; 0: not set",
        Whole{0, kMany}, OnResume::of_one_start);
    list.entry("peak-tflops", s.peak_tflops,
        "with --dry-run, instead of --speed: dense bf16 TFLOP/s of a rank's GPU, of which 49 % are assumed, as "
        "measured on an H200; 0: not set",
        Real{0, 1e6}, OnResume::of_one_start);
    list.entry("price", s.price, "with --dry-run: price of an hour of all ranks, for the cost of the run; 0: not set",
        Real{0, 1e9}, OnResume::of_one_start);
    list.check([&s] {
        for (const auto& [flag, is_set] : {std::pair("--ranks", s.ranks > 0), {"--memory", !s.memory.empty()},
                                           {"--speed", s.tokens_per_second > 0}, {"--peak-tflops", s.peak_tflops > 0},
                                           {"--price", s.price > 0}})
            require(s.plans || !is_set, flag, "set without --dry-run", "--dry-run, which plans for other machines",
                    "add it, or start ranks with mpirun");
        require(s.tokens_per_second == 0 || s.peak_tflops == 0, "--peak-tflops", s.peak_tflops, "0 with --speed",
                "remove one of them");
        memory_bytes(s);
    });
}

std::size_t memory_bytes(const DryRunSettings& dry_run) {
    if (dry_run.memory.empty()) return 0;
    constexpr std::string_view kUnits = "MGT";
    const auto unit = dry_run.memory.find_first_not_of("0123456789.");
    const std::string rest = unit == std::string::npos ? "" : dry_run.memory.substr(unit + 1);
    const auto power = unit == std::string::npos ? kUnits.npos : kUnits.find(dry_run.memory[unit]);
    const bool has_unit = power != kUnits.npos && (rest.empty() || rest == "B" || rest == "iB");
    const double number = has_unit ? std::strtod(dry_run.memory.substr(0, unit).c_str(), nullptr) : 0;
    require(number >= 0.01 && number <= 1e6, "--memory", in_quotes(dry_run.memory),
            "a number from 0.01 to 1000000 with a unit, such as 80G, 512M or 1.5T");
    // A card that is sold with 80 GB reports 81,559 MiB (H100; H200: 141 GB, 143,771): 0.9956 of as many GiB.
    return std::size_t(std::ldexp(power == 1 ? 0.9956 * number : number, 20 + 10 * int(power)));
}

OptionList option_table(RunSettings& s) {
    OptionList list;
    list.decided = &s.decided;
    list.order_of_groups({"Data and model", "Batch and length", "Optimizer", "1-bit Adam", "Evaluation and sampling",
                          "Checkpoint", "Tokenizer", "Data parallelism", "Noise scale", "Precision and memory",
                          "Machine", "Other"});
    add_options(list, s.batch);
    add_options(list, s.schedule);
    add_options(list, s.optimizer);
    add_options(list, s.length);
    add_options(list, s.data);
    add_options(list, s.model);
    add_options(list, s.validation);
    add_options(list, s.samples);
    add_options(list, s.hellaswag);
    list.entry("eval-only", s.eval_only, "run validation, HellaSwag and samples once, then exit");
    add_options(list, s.checkpoints);
    add_options(list, s.exchange);
    add_options(list, s.algorithms);
    add_options(list, s.placement);
    add_outer_options(list, s.optimizer.outer);
    add_options(list, s.noise);
    add_options(list, s.report);
    list.group("Machine");
    list.entry("seed", s.seed, "random seed for initial weights, shuffling, samples and stochastic rounding",
        Whole{0, std::numeric_limits<std::int64_t>::max()}, OnResume::same);
    add_options(list, s.precision);
    add_options(list, s.dry_run);
    return list;
}

RunSettings all_decided(RunSettings settings) {
    for (const Option& option : option_table(settings).options)
        if (option.decided) option.decided->insert(option.name());
    return settings;
}

std::any optimizer_settings(const RunSettings& s, std::int64_t warmup_steps, std::span<const int> nodes) {
    return s.optimizer.kind->settings(own_flags(s.optimizer),
                                      {.zero_stage = s.exchange.zero_stage, .warmup_steps = warmup_steps,
                                       .is_timed = s.length.is_timed(), .nodes = nodes});
}

namespace {

// Throws if an option differs from its default though it has no effect.
void check_needs(const OptionList& is, const OptionList& of) {
    for (std::size_t i = 0; i < is.options.size(); ++i) {
        const Option& option = is.options[i];
        const auto& [name, value] = option.needs;
        if (option.is_left_to_run() || option.values() == of.options[i].values() || is.is_met(option.needs)) continue;
        const std::string flag = "--" + option.name(), needed = "--" + name + ' ';
        fail(flag, "set with " + needed + is[name].values().front(), needed + value,
             "set that, or " + flag + '=' + of.options[i].values().front());
    }
}

}  // namespace

void check_together(const RunSettings& given, const std::set<std::string>& names) {
    RunSettings s = given, defaults = all_decided({});
    const OptionList options = option_table(s);
    // What the run chooses fits what is given.
    if (options["total-batch-tokens"].is_left_to_run() && s.batch.micro_batch == 0) s.batch.micro_batch = 1;
    if (options["keep-checkpoints"].is_left_to_run()) s.checkpoints.keep = 1;
    optimizer_settings(s, std::max(s.schedule.warmup_steps, s.schedule.warmup_tokens), {});
    check_needs(options, option_table(defaults));
    for (const auto& check : options.checks) check();
    if (s.length.steps > 0)
        require(s.schedule.warmup_steps <= s.length.steps, "--warmup-steps", s.schedule.warmup_steps,
                "at most --max-steps = " + std::to_string(s.length.steps));
    if (s.optimizer.outer.every > 0) {
        std::vector<std::string> local;
        for (const auto& [name, kind] : kOptimizers)
            if (!kind->local_gradients) local.emplace_back(name);
        require(!s.optimizer.kind->local_gradients, "--outer-steps",
                "set with --optimizer " + name_of(s.optimizer.kind, kOptimizers), list_names(local));
        require(!s.length.is_timed(), "--max-minutes", "the length of a run with --outer-steps",
                "a number of steps or tokens, which says where the last round ends", "add --max-steps");
        require(!s.precision.stochastic_rounding, "--stochastic-rounding", "set with --outer-steps",
                "rounding to nearest: workers would round with the same random bits", "remove it");
    }
    const bool changes = sizes_of_steps(s.batch, 1).size() > 1;
    require(!changes || !s.data.pad_last, "--pad-last", "set with --batch-schedule",
            "steps of one size, to which the last step of an epoch is filled up", "use -d, or remove --pad-last");
    require(!changes || !s.data.overfit_batch, "--overfit-batch", "set with --batch-schedule",
            "steps of one size: all repeat the first one's batch", "use -d");
    // Defaults are accepted without data, because a file with all options contains them.
    if (names.contains("val-every") && s.validation.every > 0 && s.validation.every != defaults.validation.every)
        require(!s.data.val.empty(), "--val-data", "missing", "validation shards, because --val-every is set",
                "set -j, or remove --val-every");
    for (const auto& [flag, is_set, off] : {std::tuple("--keep-best", s.checkpoints.keep_best, "=off"),
                                            {"--stop-after", s.validation.stop_after > 0, "=0"}})
        require(!is_set || (!s.data.val.empty() && s.validation.every > 0), flag, "set without validations",
                "--val-data, and --val-every above 0", "set them, or " + std::string(flag) + off);
    const std::string& folder = s.checkpoints.output_dir;
    require(!s.checkpoints.keep_best || !folder.empty() || s.dry_run.plans || s.eval_only, "--keep-best",
            "set without --output-dir", "the folder that checkpoints are saved in", "set -o, or remove it");
    if (names.contains("hellaswag-every") && s.hellaswag.every != defaults.hellaswag.every)
        require(!s.hellaswag.file.empty(), "--hellaswag", "missing",
                "a file of examples, because --hellaswag-every is set");
    require(!s.eval_only || s.length.minutes == 0, "--max-minutes", s.length.minutes, "0 with --eval-only",
            "remove it: an evaluation is made whole; --val-tokens makes it shorter");
    require(!(s.eval_only && s.data.val.empty() && s.hellaswag.file.empty()), "--val-data", "missing",
            "validation shards, or examples with --hellaswag, because --eval-only is set");
    const bool in_a_run = !folder.empty() && is_present(std::filesystem::path(folder) / kOptionsName);
    require(s.eval_only || !s.data.train.empty() || (s.dry_run.elsewhere() && !in_a_run), "--train-data", "missing",
            "training shards, for example -i 'data/bible/bible_train_*.bin'",
            in_a_run && !s.checkpoints.resumes() ? "-y auto resumes the run in " + folder
                                                 : "make shards with dev/tokenize, or see --help");
}

std::vector<std::string> flags_of(const RunSettings& settings, bool changed) {
    RunSettings read = settings, defaults;
    const OptionList table = option_table(read), of_defaults = option_table(defaults);
    std::vector<std::string> flags;
    for (std::size_t i = 0; i < table.options.size(); ++i) {
        const Option& option = table.options[i];
        const std::vector<std::string> values = option.values();
        if ((values != of_defaults.options[i].values()) != changed) continue;
        for (const std::string& value : values)
            flags.push_back("--" + option.name() + (option.is_switch() && value == "on" ? ""
                                                                                         : '=' + for_shell(value)));
    }
    return flags;
}

namespace {
template <class Json> Json json_of(const RunSettings& settings) {
    RunSettings read = settings;
    Json json;
    for (const Option& option : option_table(read).options) json[option.name()] = option.json();
    return json;
}
}  // namespace

nlohmann::json to_json(const RunSettings& settings) { return json_of<nlohmann::json>(settings); }
std::string config_text(const RunSettings& s) { return text_of(json_of<nlohmann::ordered_json>(s), 4) + '\n'; }

}  // namespace llmc
