// advice.cpp - suggestions from published runs and from measurements
#include "llmc/run/start/advice.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "llmc/base/json_text.h"
#include "llmc/base/number_text.h"
#include "llmc/base/value_text.h"
#include "llmc/model/outer_steps.h"
#include "llmc/run/log/report.h"

namespace llmc {
namespace {

struct PublishedRun {
    const char* name;
    double parameters, lr, step_tokens;
};
// Peak learning rates of AdamW and tokens per step: of README's "Train on your own text", and of Brown et al. 2020
// (arXiv 2005.14165), whose 0.5, 1 and 2 million are 2^19, 2^20 and 2^21 tokens
constexpr PublishedRun kRuns[] = {{"README's example", 0.84e6, 3e-3, 1024},
                                  {"GPT-3 125M", 125e6, 6e-4, 0x1p19},
                                  {"GPT-3 350M", 356e6, 3e-4, 0x1p19},
                                  {"GPT-3 760M", 760e6, 2.5e-4, 0x1p19},
                                  {"GPT-3 1.3B", 1.3e9, 2e-4, 0x1p20},
                                  {"GPT-3 2.7B", 2.7e9, 1.6e-4, 0x1p20},
                                  {"GPT-3 6.7B", 6.7e9, 1.2e-4, 0x1p21},
                                  {"GPT-3 13B", 13e9, 1e-4, 0x1p21}};
constexpr double kWarmupTokens = 375e6;     // of GPT-3; of a short run at most kWarmupPart
constexpr double kWarmupPart = 0.05;
constexpr double kTokensPerParameter = 20;  // Hoffmann et al. 2022, arXiv 2203.15556
// Passes over a text that count nearly as new text, and the most that add anything: Muennighoff et al. 2023, arXiv
// 2305.16264. README's model on 165 kB of this project's Markdown: a validation loss of 1.855 after 9 passes, 1.358
// (the lowest) after 19, and 1.439 after 25
constexpr double kPassesAsNew = 4, kMostPasses = 40;
constexpr double kManyPasses = 20;  // without --stop-after: the validation loss of that model rose from there on
constexpr double kLeastSteps = 500;  // fewer steps of a larger batch train less; an estimate
constexpr double kBeta2OfWorkers = 0.999;  // dev/results/2026-11-27-outer-steps.md
constexpr std::int64_t kTokensForOneBit = 2048;  // of a worker's step; 1 bit was no better with 512: the same page
// 0.95 is GPT-3's, for 0.5 million tokens a step. Losses 0.03 to 0.18 lower: 2026-11-25-muon.md, -27-h200-sweeps.md
constexpr double kBeta2OfFewTokens = 0.99;
constexpr std::int64_t kFewTokens = 8192;
constexpr double kMostParametersPerToken = 20;  // nanoGPT's shakespeare_char has 10.6, with dropout; an estimate

const PublishedRun& nearest(double parameters) {
    const auto distance = [&](const PublishedRun& run) { return std::fabs(std::log(run.parameters / parameters)); };
    return *std::ranges::min_element(kRuns, {}, distance);
}

// The newest noise scale in the log of --output-dir, in tokens; 0: none.
double noise_of_log(const std::string& output_dir) {
    const std::filesystem::path log = std::filesystem::path(output_dir) / kLogName;
    std::error_code none;
    if (output_dir.empty() || !std::filesystem::is_regular_file(log, none)) return 0;
    double tokens = 0;
    std::ifstream in(log);
    for (std::string line; std::getline(in, line);) {
        if (line.find("\"noise_scale_tokens\":") == line.npos) continue;
        const nlohmann::json event = parse_json(line);
        if (const auto found = event.find("noise_scale_tokens"); found != event.end() && found->is_number())
            tokens = found->get<double>();
    }
    return std::isfinite(tokens) && tokens > 0 ? tokens : 0;
}

double two_digits(double number) { return std::strtod(format("%.2g", number).c_str(), nullptr); }

// The largest number up to this one that only has its three highest bits set: 160 of 187, a batch that divides well.
std::int64_t three_bits(std::int64_t number) {
    const auto unit = std::max<std::int64_t>(std::int64_t(std::bit_floor(std::uint64_t(number))) / 4, 1);
    return number / unit * unit;
}

// "  --lr 0.01 -> 0.0006: GPT-3 125M"; without the arrow if they are the same.
template <class Number>
std::string suggestion(const char* flag, Number given, Number suggested, const std::string& why) {
    return "  " + std::string(flag) + ' ' + text_of_number(given) +
           (given == suggested ? "" : " -> " + text_of_number(suggested)) + ": " + why + '\n';
}

// The tokens of a run that read the text once; of corpora with weights, the one that repeats most.
double tokens_per_pass(const RunData& data) {
    if (!data.batches.loader) return INFINITY;
    const std::int64_t targets = data.batches.loader->targets();
    double most = 1;
    for (std::int64_t i = 0; data.files.train->is_weighted() && i < std::ssize(data.files.train->corpora()); ++i)
        most = std::max(most, data.batches.loader->epochs_of_corpus(i, targets));
    return double(targets) / most;
}

double parameters_of(const ParameterTable& table) { return double(table.parameters() - table.padding()); }

// A smaller model, if this one has far too many parameters for the text: the largest of some shapes that has not, else
// the smallest one; "": none is needed, or none is smaller.
std::string smaller_model(const RunPlan& plan, const RunData& data) {
    if (!data.batches.loader) return "";
    const double parameters = parameters_of(plan.table),
                 most = kMostParametersPerToken * double(data.batches.loader->targets());
    const std::int64_t seq_len = plan.settings.batch.seq_len;
    std::string smaller;
    if (parameters <= most) return smaller;
    for (std::string shape : {"d48", "d36", "d24", "d12", "d6", "custom:l=4,h=4,c=128", "custom:l=2,h=2,c=64",
                              "custom:l=1,h=1,c=32"}) {
        if (shape[0] == 'c') shape += ",t=" + std::to_string(seq_len);
        const ModelConfig config = model_by_name(shape, plan.setup.config.vocabulary).config;
        const double count = parameters_of(ParameterTable(config));
        if (count >= parameters || config.max_seq_len < seq_len) continue;
        smaller = shape;
        if (count <= most) break;
    }
    return smaller;
}

}  // namespace

std::string note_on_default_model(const RunPlan& plan, const RunData& data) {
    const bool is_default = plan.settings.model.init == ModelSettings().init && plan.first_step == 0;
    const std::string smaller = is_default ? smaller_model(plan, data) : "";
    if (smaller.empty()) return "";
    return "the model, " + plan.settings.model.init + ", is far too large for " +
           with_commas(data.batches.loader->targets(), "token") + "; try --init " + smaller;
}

std::string note_on_passes(const RunPlan& plan, const RunData& data) {
    const RunSettings& o = plan.settings;
    if (!plan.setup.training || !plan.steps.total || !data.batches.loader || o.data.overfit_batch ||
        o.validation.stop_after > 0)
        return "";
    const double tokens = tokens_per_pass(data), passes = double(plan.steps.positions_left(0)) / tokens;
    if (passes <= kManyPasses) return "";
    const std::int64_t every = std::max<std::int64_t>(*plan.steps.total / 40, 1);
    return (o.length.minutes > 0 ? "unless --max-minutes ends it, " : "") +
           format("the run makes %.3g passes over its ", passes) + with_commas(std::llround(tokens), "token") +
           ", which it may learn by heart: use more text, or fewer steps; or validate" +
           (data.files.val ? "" : " on text that is held out (-j)") + ", with --val-every " + std::to_string(every) +
           " --stop-after 5 --keep-best --keep-checkpoints 1";
}

std::string advice_text(const RunPlan& plan, const RunData& data, std::int64_t largest_micro_batch) {
    const RunSettings& o = plan.settings;
    if (!plan.setup.training) return "";
    const double parameters = parameters_of(plan.table);
    const PublishedRun& run = nearest(parameters);
    const double text_tokens = tokens_per_pass(data), wanted = kTokensPerParameter * parameters;
    const bool held_out = data.files.val && plan.settings.validation.every > 0;
    const double given = plan.steps.total ? double(plan.positions_on_data()) / text_tokens : 0;
    const double most_passes = held_out ? kMostPasses : std::clamp(given, kPassesAsNew, kMostPasses);
    const double tokens = std::min(wanted, most_passes * text_tokens);
    const std::int64_t unit = o.batch.seq_len * plan.steps.batch().world;  // one sequence of every rank
    const double noise = noise_of_log(o.checkpoints.output_dir),
                 whole = data.batches.loader ? double(data.batches.loader->positions_in(1)) : INFINITY,
                 best = noise > 0 ? std::min({noise, 1e9, whole}) : std::min(run.step_tokens, tokens / kLeastSteps);
    const bool as_published = is_model_name(o.model.init) && plan.first_step == 0;  // random weights
    const bool keeps_step =
        plan.first_step > 0 && (plan.optimizer.kind->constant_batch || o.data.pad_last || o.data.overfit_batch);
    const bool changes_step = plan.steps.is_constant() && !keeps_step && (noise > 0 || as_published);
    const std::int64_t most = std::max<std::int64_t>(std::int64_t(best / double(unit)), 1);
    const std::int64_t step_tokens = changes_step ? three_bits(most) * unit : plan.steps.common();
    const std::int64_t sequences = step_tokens / unit;  // of a rank in one step
    const double smaller =
        noise > 0 || best >= run.step_tokens ? 1 : std::min(1.0, double(step_tokens) / run.step_tokens);
    const std::int64_t steps = std::llround(std::ceil(tokens / double(step_tokens)));
    const std::int64_t warmup = std::llround(std::min(kWarmupTokens, kWarmupPart * tokens) / double(step_tokens));
    const std::string name = run.name;
    std::string text = "suggestions, to be taken together, and the reason for each (without an arrow: as it is):\n";
    if (const std::string smaller_one = smaller_model(plan, data); as_published && !smaller_one.empty())
        return text + "  --init " + o.model.init + " -> " + smaller_one + ": the model is far too large, with\n    " +
               with_commas(std::int64_t(parameters / double(data.batches.loader->targets()))) +
               " parameters per token of the text instead of at most 20; other suggestions depend on it\n";
    largest_micro_batch = std::min(largest_micro_batch, sequences);
    while (largest_micro_batch > 1 && sequences % largest_micro_batch != 0) --largest_micro_batch;
    if (largest_micro_batch > 0)
        text += suggestion("--micro-batch", o.batch.micro_batch, largest_micro_batch,
                           "the largest that divides a step and fits the memory");
    const OptimizerKind& optimizer = *plan.optimizer.kind;
    if (changes_step)
        text += suggestion("--total-batch-tokens", plan.steps.common(), step_tokens,
                           noise > 0 ? "the noise scale in this run's log"
                           : double(step_tokens) > best && best < run.step_tokens
                               ? "one sequence per rank, because there is little text"
                           : smaller < 1 ? "less than that of " + name + ", for at least 500 steps"
                                         : name + ", the nearest published size");
    if (as_published)
        text += suggestion("--lr", o.schedule.curve.peak, two_digits(run.lr * std::sqrt(smaller) * optimizer.rate),
                           (optimizer.rate == 1 ? "of " : optimizer.title + (": " + text_of_number(optimizer.rate)) +
                                                              " times that of ") + name +
                               (smaller < 1 ? ", for smaller steps by their square root" : ", at its tokens per step"));
    if (plan.setup.dtype == kernels::DType::fp32 && (device::is_gpu() || o.dry_run.elsewhere()))
        text += "  --dtype fp32 -> bf16: on GPUs half of the memory of activations, and much faster products\n";
    if (plan.setup.sharding.ranks > 1 && o.exchange.zero_stage == 0 && !optimizer.local_gradients)
        text += "  --zero-stage 0 -> 1: bit-identical, and every rank stores only a part of the optimizer state\n";
    if (o.optimizer.outer.every > 0 && o.optimizer.beta2 < kBeta2OfWorkers)
        text += suggestion("--beta2", o.optimizer.beta2, kBeta2OfWorkers,
                           "a worker sees a rare token less often, and its second moment should last until then");
    else if (as_published && step_tokens <= kFewTokens && o.optimizer.beta2 < kBeta2OfFewTokens)
        text += suggestion("--beta2", o.optimizer.beta2, kBeta2OfFewTokens,
                           "second moments of steps of so few tokens are noisy; measured at 512 to 8,192");
    if (OuterSettings outer = plan.optimizer.outer;
        outer.workers > 1 && outer.every > 1 && step_tokens >= outer.workers * kTokensForOneBit) {
        outer.every = outer.bits = 1;
        text += std::string("  --outer-steps 1 --outer-bits 1") + 
                (o.optimizer.outer.errors ? " --outer-errors=off" : "") +
                (std::isnan(o.optimizer.outer.learning_rate) ? "" : " --outer-lr auto") +
                (std::isnan(o.optimizer.outer.momentum) ? "" : " --outer-momentum auto") +
                format(": %.3g MB a step, and the loss ends\n    lower than with rounds of several steps, as measured "
                       "(RUNS.md)\n", outer_bytes_sent(outer, plan.table, plan.setup.sharding) / 1e6);
    }
    if (plan.settings.length.is_timed()) return text;
    const double passes = tokens / text_tokens;
    const bool weighted = data.files.train && data.files.train->is_weighted();
    const std::string over = weighted ? " passes over the corpus that repeats most" : " passes over the text";
    const std::string length_reason =
        tokens < wanted ? (held_out ? "at most " : "") + format("%.3g", passes) + over + ", 1/" +
                              format("%.3g", wanted / text_tokens) + " of 20 tokens per parameter"
                        : "20 tokens per parameter, compute-optimal" +
                              (passes > 1 ? ", in " + format("%.3g", passes) + over : "");
    const std::string what_passes_add =
        passes < kPassesAsNew ? ""
        : held_out ? "    4 passes count nearly as new text, and more than 40 add nothing (Muennighoff et al. 2023);\n"
                     "    with --val-every " + std::to_string(std::max<std::int64_t>(steps / 40, 1)) +
                     " --keep-best --keep-checkpoints 1 --stop-after 5" +
                     (o.checkpoints.output_dir.empty() ? " -o FOLDER" : "") +
                     " the run ends when the validation loss\n    stops falling\n"
                   : "    4 passes count nearly as new text (Muennighoff et al. 2023), and more improve a small model "
                     "further:\n    hold out text (-j), and train until its loss stops falling\n";
    const auto length = [&](const char* unit, std::int64_t in_steps, std::int64_t in_tokens, std::int64_t now,
                            std::int64_t better, const std::string& why) {
        const bool as_tokens = in_tokens > 0 || (in_steps == 0 && !o.batch.schedule.empty());
        const std::string flag = std::string(unit) + (as_tokens ? "tokens" : "steps");
        return as_tokens ? suggestion(flag.c_str(), plan.steps.positions_in(now), better * step_tokens, why)
                         : suggestion(flag.c_str(), now,
                                      plan.steps.is_constant() ? better : plan.steps.steps_until(better * step_tokens),
                                      why);
    };
    if (as_published)
        text += length("--max-", o.length.steps, o.length.tokens, plan.steps.total.value_or(0), steps,
                       length_reason) +
                (o.length.has_steps() || o.length.epochs == 0 ? "" : "    it replaces --epochs\n") + what_passes_add +
                length("--warmup-", o.schedule.warmup_steps, o.schedule.warmup_tokens, plan.warmup_steps(), warmup,
                       "375 million tokens as GPT-3, at most 5 % of the run");
    if (const std::int64_t last = plan.steps.positions_in(plan.steps.changes().back().step);
        as_published && last >= steps * step_tokens && last > 0)
        text += "  --batch-schedule: without the sizes from " + with_commas(steps * step_tokens, "token") + " on\n";
    if (as_published && o.optimizer.outer.every > 0 && o.optimizer.outer.start_step >= steps)
        text += suggestion("--outer-start-step", o.optimizer.outer.start_step, steps * 3 / 10,
                           "30 % of the run, as measured");
    if (!data.batches.loader || weighted) return text;  // whose corpora have epochs of their own
    return text + "  this run makes " +
           format("%.3g", double(plan.positions_on_data()) / text_tokens) +
           " passes over " + with_commas(data.batches.loader->targets(), "token") + '\n';
}

}  // namespace llmc
