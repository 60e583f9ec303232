// advice.cpp - the published runs, and the nearest one to a model
#include "llmc/run/start/advice.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "llmc/base/json_text.h"
#include "llmc/base/terminal.h"
#include "llmc/base/value_text.h"
#include "llmc/run/log/report.h"

namespace llmc {
namespace {

struct PublishedRun {
    const char* name;
    double parameters, lr, step_tokens;
};
// Peak learning rates of AdamW and tokens per step: of README's "Train on your own text", and of Brown et al. 2020
// (arXiv 2005.14165)
constexpr PublishedRun kRuns[] = {{"README's example", 0.84e6, 3e-3, 1024},
                                  {"GPT-3 125M", 125e6, 6e-4, 0.5e6},
                                  {"GPT-3 350M", 356e6, 3e-4, 0.5e6},
                                  {"GPT-3 760M", 760e6, 2.5e-4, 0.5e6},
                                  {"GPT-3 1.3B", 1.3e9, 2e-4, 1e6},
                                  {"GPT-3 2.7B", 2.7e9, 1.6e-4, 1e6},
                                  {"GPT-3 6.7B", 6.7e9, 1.2e-4, 2e6},
                                  {"GPT-3 13B", 13e9, 1e-4, 2e6}};
constexpr double kWarmupTokens = 375e6;     // of GPT-3; of a short run at most kWarmupPart
constexpr double kWarmupPart = 0.05;
constexpr double kTokensPerParameter = 20;  // Hoffmann et al. 2022, arXiv 2203.15556

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

// "  --lr 0.01 -> 0.0006: GPT-3 125M"; without the arrow if they are the same.
template <class Number>
std::string suggestion(const char* flag, Number given, Number suggested, const std::string& why) {
    return "  " + std::string(flag) + ' ' + text_of_number(given) +
           (given == suggested ? "" : " -> " + text_of_number(suggested)) + ": " + why + '\n';
}

}  // namespace

std::string advice_text(const RunPlan& plan, const RunData& data, std::int64_t largest_micro_batch,
                        const Options& o) {
    if (!plan.setup.training) return "";
    const double parameters = double(plan.table.parameters() - plan.table.padding());
    const PublishedRun& run = nearest(parameters);
    const std::int64_t unit = plan.step_tokens / plan.micro_batches;  // one micro-batch of every rank
    const double noise = noise_of_log(o.output_dir), best = noise > 0 ? std::min(noise, 1e9) : run.step_tokens;
    const std::int64_t step_tokens = std::max<std::int64_t>(std::llround(best / double(unit)), 1) * unit;
    const std::int64_t steps = std::llround(std::ceil(kTokensPerParameter * parameters / double(plan.step_tokens)));
    const std::int64_t length = plan.total_steps > 0 ? plan.total_steps : steps;
    const std::int64_t warmup = std::llround(std::min(kWarmupTokens / double(plan.step_tokens),
                                                      kWarmupPart * double(length)));
    const std::string name = run.name;
    std::string text = "suggestions, and the reason for each:\n";
    const std::int64_t sequences = plan.micro_batches * o.micro_batch;  // of a rank in one step
    while (largest_micro_batch > 1 && sequences % largest_micro_batch != 0) --largest_micro_batch;
    if (largest_micro_batch > 0)
        text += suggestion("--micro-batch", o.micro_batch, largest_micro_batch,
                           "the largest that divides a step and fits the memory");
    text += suggestion("--total-batch-tokens", plan.step_tokens, step_tokens,
                       noise > 0 ? "the noise scale in this run's log" : name + ", the nearest published size");
    if (!plan.optimizer.muon)  // for which no rates are published
        text += suggestion("--lr", o.lr, run.lr, "of " + name + ", at its tokens per step");
    if (plan.control.timed) return text;
    const auto in_unit_of = [&](const char* in_steps, const char* in_tokens, bool tokens, std::int64_t now,
                                std::int64_t better, const char* why) {
        const std::int64_t unit = tokens ? plan.step_tokens : 1;
        return suggestion(tokens ? in_tokens : in_steps, now * unit, better * unit, why);
    };
    text += in_unit_of("--max-steps", "--max-tokens", o.max_tokens > 0, plan.total_steps, steps,
                       "20 tokens per parameter, compute-optimal");
    text += in_unit_of("--warmup-steps", "--warmup-tokens", o.warmup_tokens > 0, plan.schedule.warmup_steps, warmup,
                       "375 million tokens as GPT-3, at most 5 % of the run");
    char passes[64];
    std::snprintf(passes, sizeof passes, "%.3g",
                  double(plan.total_steps) * double(plan.step_tokens) / double(data.loader->targets()));
    return text + "  this run makes " + passes + " passes over " + with_commas(data.loader->targets(), "token") + '\n';
}

}  // namespace llmc
