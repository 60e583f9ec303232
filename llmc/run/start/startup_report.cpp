// startup_report.cpp - build, device, libraries, options, data, model, steps and memory of a run, each reported once;
// the published runs that --dry-run suggests
#include "llmc/run/start/startup_report.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>

#include "llmc/base/json_text.h"
#include "llmc/base/number_text.h"
#include "llmc/base/terminal.h"
#include "llmc/base/value_text.h"
#include "llmc/comm/communicator.h"
#include "llmc/model/outer_steps.h"
#include "llmc/run/log/report.h"
#include "llmc/run/start/version.h"

namespace llmc {
namespace {

using Json = nlohmann::ordered_json;

std::string describe_shards(const char* what, const ShardSet& shards) {
    return std::string(what) + ": " + counted(shards.size(), "shard") + ", " + with_commas(shards.tokens(), "token") +
           ", vocabulary " + std::to_string(shards.vocabulary().size) + '\n';
}

StartupItem version_item() {
    const Json version = version_json();
    std::istringstream text(version_text(version));
    std::string program;
    text >> program;
    return {"", {{"version", version}}, wrapped(program, {std::istream_iterator<std::string>(text), {}})};
}

StartupItem device_item(const Context& context) {
    const device::Info& device = context.device;
    const int ranks = context.world->size();
    return {"device: " + device.name + ", " + counted(device.threads, "thread") + (ranks > 1 ? " per rank" : "") + '\n',
            {{"device", device.name}, {"threads", device.threads}, {"ranks", ranks}}};
}

std::string describe_dropped(const RunPlan& plan, const RunData& data) {
    const Options& options = plan.options;
    const DataLoader& loader = *data.batches.loader;
    std::string lines;
    if (const std::int64_t dropped = loader.dropped_per_epoch(); dropped > 0)
        lines = "  " + with_commas(dropped) + " of " + with_commas(loader.targets(), "target") +
                " per epoch are dropped: the last row of a\n  shard has fewer than --seq-len (--pad-last uses them)\n";
    const bool whole_epochs = !options.has_steps() && !options.is_timed() && !data.files.train->is_weighted();
    const std::int64_t more =
        whole_epochs ? loader.positions_in(options.passes()) - plan.steps.at(*plan.steps.total).positions_before : 0;
    if (more > 0)
        lines += "  " + with_commas(more, "target") + " more at the end of the last epoch " +
                 (more == 1 ? "is" : "are") + " dropped:\n  too few for a step (--pad-last uses them)\n";
    return lines;
}

// Lines of the corpora that are drawn by weight.
std::string describe_corpora(const RunPlan& plan, const RunData& data) {
    std::string lines;
    std::int64_t sum = 0, shard = 0;
    for (const Corpus& corpus : data.files.train->corpora()) sum += corpus.weight;
    for (std::int64_t i = 0; sum > 0 && i < std::ssize(data.files.train->corpora()); ++i) {
        const Corpus& corpus = data.files.train->corpora()[std::size_t(i)];
        std::int64_t tokens = 0;
        for (const std::int64_t end = shard + corpus.shards; shard < end; ++shard)
            tokens += (*data.files.train)[shard].tokens();
        std::string epochs;
        if (plan.steps.total && data.batches.loader)
            epochs = format(", %.3g epochs", data.batches.loader->epochs_of_corpus(i, plan.steps.positions_left(0)));
        lines += format("  %.4g %% ", 100 * double(corpus.weight) / double(sum)) + corpus.pattern + ": " +
                 counted(corpus.shards, "shard") + ", " + with_commas(tokens, "token") + epochs +
                 (sum == corpus.weight ? "; the weight of one pattern alone has no effect\n" : "\n");
    }
    return lines;
}

StartupItem data_item(const RunPlan& plan, const RunData& data) {
    std::string lines;
    Json fields = Json::object();
    if (data.files.train) lines += describe_shards("training data", *data.files.train);
    if (data.files.train) lines += describe_corpora(plan, data);
    if (data.batches.loader) lines += describe_dropped(plan, data);
    if (data.files.val) lines += describe_shards("validation data", *data.files.val);
    if (data.batches.validation) {
        const std::int64_t taken = data.batches.validation->taken(), all = data.batches.validation->available();
        fields["validation_tokens"] = taken;
        fields["validation_tokens_available"] = all;
        const std::string part = (plan.options.val_spread ? "" : "the first ") + with_commas(taken) + " of ";
        lines += "  a validation reads " + (taken == all ? "all " : part) + with_commas(all, "target") +
                 (taken < all && plan.options.val_spread ? ", spread evenly (--val-tokens)\n" : "\n");
    }
    if (data.batches.hellaswag) {
        const auto examples = std::int64_t(data.batches.hellaswag->file().examples().size());
        fields["hellaswag_examples"] = examples;
        fields["hellaswag_fingerprint"] = data.batches.hellaswag->file().fingerprint();
        lines += "HellaSwag: " + with_commas(examples, "example") + '\n';
        if (const std::int64_t cut = data.batches.hellaswag->truncated_contexts(); cut > 0)
            lines += "  contexts truncated at their start to fit --seq-len: " + with_commas(cut) + '\n';
    }
    return {lines, fields};
}

StartupItem model_item(const RunPlan& plan) {
    const ModelConfig& config = plan.setup.config;
    const auto decayed = plan.table.decayed(), not_decayed = plan.table.not_decayed();
    const std::int64_t padding = plan.table.padding(), parameters = plan.table.parameters() - padding;
    const auto count = [](const ParameterTable::Count& tensors, std::int64_t elements) {
        return with_commas(elements) + " in " + std::to_string(tensors.tensors) + " tensors";
    };
    const std::string details = "  " + count(decayed, decayed.elements - padding) + " with weight decay, " +
                                count(not_decayed, not_decayed.elements) + " without" +
                                (padding > 0 ? ", and " + with_commas(padding) + " of padding" : "") + '\n';
    return {"model: " + describe(config) + "\n  " + with_commas(parameters) + " parameters\n",
            {{"model", {{"name", plan.options.init}, {"layers", config.layers}, {"heads", config.heads},
                        {"channels", config.channels}, {"positions", config.max_seq_len},
                        {"vocabulary", config.vocabulary}}},
             {"parameters", parameters}, {"padding_parameters", padding}},
            details};
}

// The options that differ from their defaults; with --dry-run also the others.
StartupItem options_item(const Options& options) {
    const std::vector<std::string> changed = flags_of(options, true);
    std::string lines = changed.empty() ? "" : wrapped("options:", changed);
    if (options.dry_run) lines += wrapped("defaults:", flags_of(options, false));
    return {"", {{"options", to_json(options)}}, lines};
}

StartupItem training_item(const RunPlan& plan) {
    const std::string noise = name_of(plan.noise.small_batches);
    const StepSize size = plan.steps.at(plan.first_step);
    const bool timed = plan.between_steps.control.timed;
    std::string lines;
    if (plan.setup.training)
        lines += "training: " +
                 (timed ? minutes_text(plan.between_steps.control.max_minutes) + ", " : "") +
                 (plan.steps.total ? with_commas(*plan.steps.total, "step") : "steps") +
                 " of " + with_commas(size.positions, "token") +
                 ", micro-batches per step: " + std::to_string(size.micro_batches) + '\n';
    Json sizes = Json::array();
    for (const BatchChange& change : plan.steps.changes()) {
        sizes.push_back({{"from_step", change.step + 1}, {"tokens", change.tokens}});
        if (change.step <= plan.first_step) continue;
        const StepSize later = plan.steps.at(change.step);
        lines += "  from step " + with_commas(change.step + 1) + " (" + with_commas(later.positions_before, "token") +
                 ") of " + with_commas(later.positions, "token") + ", micro-batches: " +
                 std::to_string(later.micro_batches) +
                 format(", learning rate * %.4g\n", std::pow(later.relative, plan.schedule.batch_exponent));
    }
    std::string details;
    if (const OuterSettings& outer = plan.optimizer.outer; outer.every > 0) {
        const int ranks = plan.world->ranks, workers = outer.workers;
        const double round = outer_bytes_sent(outer, plan.table, plan.setup.sharding) / 1e6,
                     reduced = plan.reduce_in_bf16 ? 2 : 4,
                     gathered = plan.setup.sharding.stage == 0                 ? reduced
                                : plan.setup.dtype == kernels::DType::bf16 ? 2 : 4,
                     full = double(ranks - 1) / ranks * (reduced + gathered) * double(plan.table.elements()) / 1e6;
        lines += "workers: " + (workers == ranks ? counted(ranks, "rank")
                                                 : std::to_string(workers) + ", each of " +
                                                       counted(ranks / workers, "rank")) + ", local steps from step " +
                 with_commas(outer.start_step + 1) + " on, with an outer step after every " +
                 (outer.every == 1 ? "step" : counted(outer.every, "step")) +
                 (workers == 1 ? ", though one worker sends nothing\n"
                             : format(": a worker sends %.4g MB per round, instead of %.4g per step\n", round, full));
        if (outer.bits == 1 && outer.every > 1)
            lines += "  1 bit in rounds of several steps costs more loss than 4; it is for --outer-steps 1\n";
        details += format("  outer learning rate %.4g, momentum %.4g\n", outer.learning_rate, outer.momentum);
        const std::int64_t steps = plan.steps.total.value_or(0),
                           local = std::max<std::int64_t>(steps - outer.start_step, 0);
        const double run = double(steps - local) * full + double(ceil_div(local, outer.every)) * round;
        if (workers > 1)
            for (const double gigabits : {0.1, 1.0, 10.0})
                details += format("  a link of %g Gbit/s needs %.3g s for the bytes of an outer step, %.3g s for those "
                                  "of %s;\n    %.3g s for those of the run, %.3g s without outer steps\n",
                                  gigabits, 8e-3 * round / gigabits, 8e-3 * outer.every * full / gigabits,
                                  counted(outer.every, "data-parallel step").c_str(), 8e-3 * run / gigabits,
                                  8e-3 * double(steps) * full / gigabits);
    }
    if (plan.measures_noise())
        lines += "noise: sequences in a batch whose gradient is half noise; ~ early, > at least\n";
    Json fields = {{"total_steps", plan.steps.total.value_or(0)}, {"tokens_per_step", size.positions},
                   {"batch_sizes", sizes},
                   {"noise_scale", plan.measures_noise() ? Json(noise) : Json()}};
    if (timed) fields.erase("total_steps");
    return {lines, fields, plan.noise.note.empty() ? details : details + plan.noise.note + '\n'};
}

// ---- suggestions of --dry-run

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
    const std::int64_t seq_len = plan.options.seq_len;
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

StartupItem::StartupItem(std::string lines, const nlohmann::ordered_json& fields, std::string details)
    : lines(std::move(lines)),
      details(std::move(details)),
      fields(std::make_shared<const nlohmann::ordered_json>(fields)) {}

std::vector<StartupItem> startup_items(const RunPlan& plan, const RunData& data, const MemoryPlan& memory,
                                       Context& context) {
    const Options& options = plan.options;
    const std::string communication = options.ranks > 0 ? "not started: a plan for " + counted(options.ranks, "rank")
                                                        : context.world->describe(),
                      matmul = context.matmul.describe(plan.setup.dtype);
    const kernels::AttentionPlan& attention = attention_plan(plan.setup, context);
    const auto item = [](bool always, const std::string& line, const Json& fields) {
        return StartupItem(always ? line + '\n' : "", fields, always ? "" : line + '\n');
    };
    return {version_item(),
            device_item(context),
            item(context.world->size() > 1, "communication: " + communication,
                 {{"communication", communication}}),
            item(false, "matrix library: " + matmul, {{"matmul", matmul}}),
            item(!device::memory_is_host_memory(), "attention: " + attention.text,  // CPUs have no choice
                 {{"attention", attention.text}, {"deterministic", attention.deterministic}}),
            options_item(options),
            data_item(plan, data),
            model_item(plan),
            training_item(plan),
            optimizer_item(plan.optimizer.kind->report(plan.optimizer_run())),
            {memory.summary(), {{"planned_bytes", memory.total()}}, memory.text()}};
}

StartupItem optimizer_item(const OptimizerReport& report) {
    return {report.lines, Json(*report.fields)};
}

StartupItem tuning_item(const Tuning& tuning) {
    std::string lines = tuning.describe();
    if (!lines.empty()) lines += '\n';
    return {lines, {{"choices", tuning.fields()}}};
}

std::string terminal_text(const std::vector<StartupItem>& items, const Options& options) {
    std::string text;
    for (const StartupItem& item : items) text += item.lines + (options.verbose || options.dry_run ? item.details : "");
    return text;
}

nlohmann::ordered_json start_event(const std::vector<StartupItem>& items) {
    // These two come before the other fields, whatever the order of the items.
    Json event = {{"event", "start"}, {"log_version", kLogVersion}, {"time", utc_text()}, {"host", host_name()},
                  {"version", nullptr}, {"options", nullptr}};
    for (const StartupItem& item : items)
        if (item.fields)
            for (const auto& [name, value] : item.fields->items()) event[name] = value;
    return event;
}

std::string note_on_default_model(const RunPlan& plan, const RunData& data) {
    const bool is_default = plan.options.init == Options().init && plan.first_step == 0;
    const std::string smaller = is_default ? smaller_model(plan, data) : "";
    if (smaller.empty()) return "";
    return "without --init the model is " + plan.options.init + ", which is far too large for " +
           with_commas(data.batches.loader->targets(), "token") + "; try --init " + smaller;
}

std::string advice_text(const RunPlan& plan, const RunData& data, std::int64_t largest_micro_batch) {
    const Options& o = plan.options;
    if (!plan.setup.training) return "";
    const double parameters = parameters_of(plan.table);
    const PublishedRun& run = nearest(parameters);
    const double text_tokens = tokens_per_pass(data), wanted = kTokensPerParameter * parameters;
    const bool held_out = plan.between_steps.val_every > 0;
    const double given = plan.steps.total ? double(plan.steps.positions_left(0)) / text_tokens : 0;
    const double most_passes = held_out ? kMostPasses : std::clamp(given, kPassesAsNew, kMostPasses);
    const double tokens = std::min(wanted, most_passes * text_tokens);
    const std::int64_t unit = o.seq_len * plan.steps.batch().world;  // one sequence of every rank
    const double noise = noise_of_log(o.output_dir),
                 best = noise > 0 ? std::min(noise, 1e9) : std::min(run.step_tokens, tokens / kLeastSteps);
    const bool as_published = is_model_name(o.init);  // random weights
    const bool changes_step = plan.steps.is_constant() && (noise > 0 || as_published);
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
        return text + "  --init " + o.init + " -> " + smaller_one + ": the model is far too large, with\n    " +
               with_commas(std::int64_t(parameters / double(data.batches.loader->targets()))) +
               " parameters per token of the text instead of at most 20; other suggestions depend on it\n";
    largest_micro_batch = std::min(largest_micro_batch, sequences);
    while (largest_micro_batch > 1 && sequences % largest_micro_batch != 0) --largest_micro_batch;
    if (largest_micro_batch > 0)
        text += suggestion("--micro-batch", o.micro_batch, largest_micro_batch,
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
        text += suggestion("--lr", o.lr, two_digits(run.lr * std::sqrt(smaller) * optimizer.rate),
                           (optimizer.rate == 1 ? "of " : optimizer.title + (": " + text_of_number(optimizer.rate)) +
                                                              " times that of ") + name +
                               (smaller < 1 ? ", for smaller steps by their square root" : ", at its tokens per step"));
    if (plan.setup.dtype == kernels::DType::fp32 && (device::is_gpu() || o.plans_elsewhere()))
        text += "  --dtype fp32 -> bf16: on GPUs half of the memory of activations, and much faster products\n";
    if (plan.setup.sharding.ranks > 1 && o.zero_stage == 0 && !optimizer.local_gradients)
        text += "  --zero-stage 0 -> 1: bit-identical, and every rank stores only a part of the optimizer state\n";
    if (o.outer_steps > 0 && o.beta2 < kBeta2OfWorkers)
        text += suggestion("--beta2", o.beta2, kBeta2OfWorkers,
                           "a worker sees a rare token less often, and its second moment should last until then");
    else if (as_published && step_tokens <= kFewTokens && o.beta2 < kBeta2OfFewTokens)
        text += suggestion("--beta2", o.beta2, kBeta2OfFewTokens,
                           "second moments of steps of so few tokens are noisy; measured at 512 to 8,192");
    if (OuterSettings outer = plan.optimizer.outer;
        outer.workers > 1 && outer.every > 1 && step_tokens >= outer.workers * kTokensForOneBit) {
        outer.every = outer.bits = 1;
        text += std::string("  --outer-steps 1 --outer-bits 1") + (o.outer_errors ? " --outer-errors=off" : "") +
                (std::isnan(o.outer_lr) ? "" : " --outer-lr auto") +
                (std::isnan(o.outer_momentum) ? "" : " --outer-momentum auto") +
                format(": %.3g MB a step, and the loss ends\n    lower than with rounds of several steps, as measured "
                       "(RUNS.md)\n", outer_bytes_sent(outer, plan.table, plan.setup.sharding) / 1e6);
    }
    if (plan.between_steps.control.timed) return text;
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
                     " --keep-best --keep-checkpoints 1 --stop-after 5 the run ends when the validation loss\n"
                     "    stops falling\n"
                   : "    4 passes count nearly as new text (Muennighoff et al. 2023), and more improve a small model "
                     "further:\n    hold out text (-j), and train until its loss stops falling\n";
    const auto length = [&](const char* in_steps, const char* in_tokens, bool as_tokens, std::int64_t now,
                            std::int64_t better, const std::string& why) {
        return as_tokens ? suggestion(in_tokens, plan.steps.at(now).positions_before, better * step_tokens, why)
                         : suggestion(in_steps, now, better, why);
    };
    if (as_published)
        text += length("--max-steps", "--max-tokens", o.max_tokens > 0 || !o.batch_schedule.empty(),
                       plan.steps.total.value_or(0), steps, length_reason) +
                what_passes_add +
                length("--warmup-steps", "--warmup-tokens", o.warmup_tokens > 0 || !o.batch_schedule.empty(),
                       plan.warmup_steps, warmup,
                       "375 million tokens as GPT-3, at most 5 % of the run");
    if (as_published && o.outer_steps > 0 && o.outer_start_step >= steps)
        text += suggestion("--outer-start-step", o.outer_start_step, steps * 3 / 10, "30 % of the run, as measured");
    if (!data.batches.loader || weighted) return text;  // whose corpora have epochs of their own
    return text + "  this run makes " +
           format("%.3g", double(plan.steps.positions_left(0)) / text_tokens) +
           " passes over " + with_commas(data.batches.loader->targets(), "token") + '\n';
}

}  // namespace llmc
