// choice.cpp - the rules behind auto, and the numbers that they rest on
#include "llmc/run/start/choice.h"

#include <algorithm>
#include <cstdlib>

#include "kernels/base/error.h"
#include "llmc/base/number_text.h"
#include "llmc/base/value_text.h"
#include "llmc/model/optimizer.h"

namespace llmc {
namespace {

// ---- measured: dev/results/2026-11-28-auto.md

// Nats per byte = H (kFloor + kScale sqrt(kOfModel n^-kModelPower + kOfData d^-kDataPower)): n million parameters
// without positions, d 10 MB; H of the text: bigram_loss^kBigramPower zstd_loss^kZstdPower of the Facts. A text of U
// tokens that is read several times counts as at most U (1 + R), R = kRepeats / (1 + parameters / U) (of Muennighoff et
// al. 2023, arXiv 2305.16264, is the value for small models).
constexpr double kBigramPower = 0.87, kZstdPower = 0.5, kFloor = 0.253, kScale = 0.842, kOfModel = 0.06,
                 kModelPower = 0.5, kOfData = 0.095, kDataPower = 0.5, kRepeats = 15.4;
// Of one layer it is higher after more tokens than these.
constexpr double kTokensOfOneLayer = 4e6, kOneLayer = 1.03;
// Tokens of a step, and AdamW's rate, at this point; the powers of tokens of the run, tokens of a step and parameters
// of blocks.
constexpr double kModelAt = 0.79e6, kTokensAt = 4e6, kStepAt = 3500, kRateAt = 3e-3;
constexpr double kStepPower = 0.383, kRateOfStep = 0.5, kLargestStep = 2, kRateOfSmall = 0.12, kRateOfLarge = 0.3;
constexpr double kTokensOfParameter = 8;  // at least, where time is no limit: as the best models of a time have
constexpr double kTrainedRate = 0.1;  // of a trained model: as GPT was fine-tuned (configs/finetune.json)

// The rest of the time is start-up, samples and the last checkpoint; validations have a share of their own.
constexpr double kShareOfTraining = 0.96, kShareOfValidations = 0.02;
constexpr int kValidations = 20;
constexpr double kMostOfValidations = 0.1, kLeastOfValidation = 16384;
constexpr double kPasses = 4;       // without a budget; more count less than new text
constexpr double kTokensPerParameter = 20;  // without a text or a budget: Hoffmann et al. 2022, arXiv 2203.15556
constexpr std::int64_t kLeastSeqLen = 16, kLeastRows = 8;  // of a text: rows of one rank
// The length of rows: of small models in short runs, twice as much for more tokens, for bytes; 1024 for larger ones.
constexpr std::int64_t kSeqLen = 128;
constexpr double kTokensOfLonger = 10e6, kLargeModel = 20e6;
// Attention within documents lowers the loss if as many start in a sequence: dev/results/2026-11-29-documents.md.
constexpr double kDocumentsOfRow = 2;
constexpr int kLeastSteps = 20;     // in a time
constexpr int kLines = 100;         // of steps, on the terminal
constexpr double kStepsAnyway = 200;  // even if they learn a tiny text by heart

struct Shape {
    const char* name;  // empty: custom
    int layers, heads, channels;
};
constexpr Shape kShapes[] = {{"", 1, 2, 32}, {"", 1, 2, 64}, {"", 1, 3, 96}, {"", 2, 3, 96}, {"", 2, 4, 128},
                             {"", 3, 4, 128}, {"", 4, 4, 128}, {"", 5, 5, 160}, {"", 6, 6, 192}, {"", 6, 4, 256},
                             {"", 8, 5, 320}, {"", 8, 6, 384}, {"", 10, 8, 512}, {"", 12, 10, 640},
                             {"d12", 12, 12, 768}, {"d24", 24, 16, 1024}, {"d36", 36, 20, 1280},
                             {"d48", 48, 25, 1600}};

// ----

double parameters_of_blocks(const ModelConfig& model) {
    return 12.0 * model.layers * model.channels * model.channels;
}
double parameters_of(const ModelConfig& model) {
    return parameters_of_blocks(model) + double(model.vocabulary) * model.channels;
}

double repeats_of(const Facts& facts, const ModelConfig& model) {
    return kRepeats / (1 + parameters_of(model) / facts.tokens);
}

std::string two_digits(double number) { return text_of_number(std::strtod(format("%.2g", number).c_str(), nullptr)); }

double step_for(double tokens) { return kStepAt * std::pow(tokens / kTokensAt, kStepPower); }

std::int64_t power_of_two(double number) { return std::int64_t(1) << std::lround(std::log2(std::max(number, 1.0))); }

// What a run with this model would be.
struct Candidate {
    ModelConfig model;
    std::string name;
    std::int64_t seq_len = 0, step_tokens = 0;
    double tokens = 0, rate = 0, loss = 0;
    std::optional<double> seconds{};
};

class Chooser {
public:
    Chooser(const Facts& facts, const RunSettings& settings)
        : facts_(facts), settings_(settings), read_(settings), table_(option_table(read_)) {}

    Chosen choose() {
        check();
        Candidate best;
        if (facts_.model) {
            best = candidate(*facts_.model, "");
        } else {
            std::vector<Candidate> all;
            for (const Shape& shape : kShapes)
                if (const auto one = candidate_of(shape)) all.push_back(*one);
            const LengthSettings& length = settings_.length;
            if (!all.empty() && length.is_timed()) {
                const Candidate& least = all.front();
                const double steps = *least.seconds / least.tokens * double(least.step_tokens) * kLeastSteps;
                require(length.minutes * 60 >= steps, "--max-minutes", length.minutes,
                        "time for " + std::to_string(kLeastSteps) + " steps of the smallest model; here they take " +
                            time_text(steps), "train longer");
            }
            require(!all.empty(), "the memory for a model", mebibytes(std::size_t(facts_.memory)),
                    "enough for the smallest model", "set --init and --micro-batch");
            if (!settings_.length.is_timed())  // nothing else limits the size
                is_limited_ = std::erase_if(all, [&](const Candidate& one) {
                    return parameters_of(one.model) * kTokensOfParameter > one.tokens && &one != &all.front();
                }) > 0;
            const auto found = std::ranges::min_element(all, {}, &Candidate::loss);
            best = *found;
            if (found + 1 != all.end()) chosen_.larger = (found + 1)->loss - best.loss;
            if (found != all.begin()) chosen_.smaller = (found - 1)->loss - best.loss;
        }
        chosen_.model = best.model;
        chosen_.tokens = best.tokens;
        chosen_.seconds = best.seconds;
        chosen_.is_assumed = !tokens_of(best.model, best.seq_len, double(best.step_tokens));
        if (std::isfinite(facts_.tokens) && !facts_.model && is_free("lr"))
            chosen_.loss = std::min(best.loss, std::log(double(facts_.vocabulary)) / facts_.bytes_per_token);
        report(best);
        return std::move(chosen_);
    }

private:
    bool is_free(const char* flag) const { return table_[flag].is_left_to_run(); }
    // Throws Error for facts without which nothing can be chosen.
    void check() const {
        const std::int64_t least = kLeastRows * kLeastSeqLen * facts_.ranks;
        require(facts_.tokens >= double(least) || !is_free("total-batch-tokens"), "the training data",
                counted(std::int64_t(facts_.tokens), "token"), "at least " + std::to_string(least) +
                    " to choose a batch from", "use more text, or set -t, -b and -d");
        if (facts_.model) return;
        require(settings_.length.minutes == 0 || settings_.length.has_steps() || settings_.length.epochs > 0 ||
                    facts_.speed.is_known(), "--init", "auto in a plan for another machine",
                "the speed of that machine", "set --peak-tflops, or --init and --speed");
        require(std::isfinite(facts_.tokens) || settings_.length.has_steps() || settings_.length.minutes > 0, "--init",
                settings_.data.train.empty() ? "auto without data and a length"
                                             : "auto, and no file matches --train-data",
                "data or a length, to choose a model for", "set -i, --max-tokens or -e");
    }
    // Gives a value to a flag that has none.
    void set(const char* flag, const std::string& value, const std::string& reason = "") {
        if (is_free(flag)) chosen_.values.push_back({flag, value, reason});
    }

    bool chooses_step() const { return is_free("total-batch-tokens") && settings_.batch.schedule.empty(); }
    bool muon() const { return settings_.optimizer.kind == &kMuon; }

    std::int64_t seq_len_of(const ModelConfig& model) const {
        if (settings_.batch.seq_len > 0) return settings_.batch.seq_len;
        const double most = std::min({double(facts_.model ? model.max_seq_len : 1024),
                                      facts_.tokens / double(kLeastRows * facts_.ranks),
                                      facts_.val_tokens > 0 ? facts_.val_tokens - 1 : INFINITY});
        const double tokens = tokens_of(model, kSeqLen, kStepAt).value_or(INFINITY);
        std::int64_t length = tokens < kTokensOfLonger ? kSeqLen : 2 * kSeqLen;
        if (facts_.bytes_per_token < 2) length *= 2;
        if (parameters_of_blocks(model) >= kLargeModel || facts_.is_trained) length = 1024;
        while (double(length) > most && length > kLeastSeqLen) length /= 2;
        if (facts_.model) length = std::min<std::int64_t>(length, model.max_seq_len);
        if (chooses_step()) return length;
        const std::int64_t step = sizes_of_steps(with_seq_len(length), facts_.ranks).front().tokens;
        for (std::int64_t divides = length; divides >= kLeastSeqLen; divides /= 2)
            if (step % (divides * facts_.ranks) == 0) return divides;
        return length;
    }

    BatchSettings with_seq_len(std::int64_t length) const {
        BatchSettings batch = settings_.batch;
        batch.seq_len = length;
        return batch;
    }

    // More passes in a given time add little. Infinite for a given number of them, or model: that run takes its time.
    double most_passes(const ModelConfig& model) const {
        if (!is_free("epochs") || !std::isfinite(facts_.tokens) || facts_.model) return INFINITY;
        return std::ceil(2 * repeats_of(facts_, model));
    }

    // Tokens of a run with steps of this size; nullopt: of any length.
    std::optional<double> tokens_of(const ModelConfig& model, std::int64_t seq_len, double step) const {
        const LengthSettings& length = settings_.length;
        if (length.steps > 0) return double(length.steps) * step;
        if (length.tokens > 0) return double(length.tokens);
        if (length.epochs > 0 && std::isfinite(facts_.tokens)) return double(length.epochs) * facts_.tokens;
        if (length.minutes > 0) {
            if (!facts_.speed.is_known()) return {};
            return std::min(training_seconds(length.minutes) /
                                facts_.speed.seconds_per_token(model, seq_len, std::int64_t(step), muon()),
                            std::max(most_passes(model) * facts_.tokens, kStepsAnyway * step));
        }
        if (std::isfinite(facts_.tokens)) return kPasses * facts_.tokens;
        return {};
    }

    Candidate candidate(const ModelConfig& model, const std::string& name) const {
        Candidate one{.model = model, .name = name, .seq_len = seq_len_of(model)};
        const double parameters = parameters_of_blocks(model);
        const BatchSettings& batch = settings_.batch;
        const std::int64_t micro = is_free("micro-batch") ? 1 : std::max<std::int64_t>(batch.micro_batch, 1),
                           unit = micro * one.seq_len * facts_.ranks;
        const std::int64_t most = std::isfinite(facts_.tokens)
                                      ? std::max(std::int64_t(facts_.tokens / 4) / unit * unit, unit)
                                      : std::int64_t(1) << 40;
        one.step_tokens = std::int64_t(kStepAt);
        for (int i = 0; i < 10; ++i) {  // the size depends on the length, and that in time or steps on the size
            one.tokens = tokens_of(model, one.seq_len, double(one.step_tokens))
                             .value_or(kTokensPerParameter * parameters);
            if (!chooses_step()) {
                one.step_tokens = sizes_of_steps(with_seq_len(one.seq_len), facts_.ranks).front().tokens;
            } else {
                one.step_tokens = std::clamp(unit * power_of_two(step_for(one.tokens) / double(unit)), unit, most);
            }
        }
        one.rate = kRateAt *
                   std::pow(std::min(double(one.step_tokens) / step_for(one.tokens), kLargestStep), kRateOfStep) *
                   std::pow(parameters / kModelAt, parameters < kModelAt ? -kRateOfSmall : -kRateOfLarge) *
                   settings_.optimizer.kind->rate * (facts_.is_trained ? kTrainedRate : 1);
        one.loss = expected_loss(facts_, model, one.tokens);
        if (facts_.speed.is_known())
            one.seconds = one.tokens * facts_.speed.seconds_per_token(model, one.seq_len, one.step_tokens, muon());
        return one;
    }

    std::optional<Candidate> candidate_of(const Shape& shape) const {
        ModelConfig model{shape.layers, shape.heads, shape.channels, 1024, facts_.vocabulary};
        std::string name = shape.name;
        if (name.empty()) {
            model.max_seq_len = int(seq_len_of(model));
            name = format("custom:l=%d,h=%d,c=%d,t=%d", shape.layers, shape.heads, shape.channels, model.max_seq_len);
        } else if (seq_len_of(model) > model.max_seq_len) {
            return {};
        }
        // Parameters, gradients and two moments in fp32, and a micro-batch of one row
        const Work work = work_of(model, seq_len_of(model), muon());
        const double bytes = 18 * work.parameters + 4 * work.elements * double(seq_len_of(model));
        if (facts_.memory > 0 && bytes > facts_.memory) return {};
        return candidate(model, name);
    }

    void report(const Candidate& best) {
        const RunSettings& s = settings_;
        const double passes = best.tokens / facts_.tokens;
        const bool has_length = s.length.has_steps() || s.length.minutes > 0,
                   is_short = s.length.is_timed() && is_free("epochs") && passes >= most_passes(best.model),
                   timed = s.length.is_timed() && !is_short;
        const std::int64_t steps = std::max<std::int64_t>(std::llround(best.tokens / double(best.step_tokens)), 1);
        if (!best.name.empty()) {
            std::string reason = "the lowest expected loss";
            if (chosen_.larger || chosen_.smaller) reason += ", per byte:\n    ";
            if (chosen_.larger) reason += format("one size up would end %.2g higher", *chosen_.larger);
            if (chosen_.larger && chosen_.smaller) reason += ", ";
            if (chosen_.smaller)
                reason += format("one size down %s%.2g higher", chosen_.larger ? "" : "would end ", *chosen_.smaller);
            if (is_limited_ && !chosen_.larger)
                reason += format("; larger ones want a longer run: %g tokens for each parameter", kTokensOfParameter);
            set("init", best.name, reason);
        }
        if (is_short) set("epochs", format("%g", std::ceil(passes)), "less than the time: more passes would not help");
        else if (has_length || std::isinf(facts_.tokens)) set("epochs", "auto");
        else set("epochs", format("%g", kPasses), "they count nearly as new text");
        set("seq-len", std::to_string(best.seq_len));
        set("total-batch-tokens", s.batch.schedule.empty() ? std::to_string(best.step_tokens) : "0",
            "for " + short_text(best.tokens) + " tokens");
        set("micro-batch", "auto");
        set("shuffle", "on");
        choose_masks(best);
        set("lr", two_digits(best.rate),
            facts_.is_trained ? "a tenth of a new model's" : "for steps of this size, and this model");
        set("lr-schedule", "linear");
        set("final-lr-fraction", "0");
        set("warmup-steps", timed || s.schedule.warmup_tokens > 0 ? "0" : std::to_string(steps / 20),
            timed ? "with --max-minutes that is 5 % of the time" : "5 % of the run");
        const double decay = std::clamp(0.1 * passes * parameters_of(best.model) / facts_.tokens, 0.1, 0.5);
        set("weight-decay", two_digits(decay),
            decay > 0.1 ? format("against learning the text by heart in %.3g passes", passes) : "");
        if (s.optimizer.outer.every > 0)
            set("beta2", "0.999", "a worker sees a rare token less often, and its second moment should last");
        else
            set("beta2", best.step_tokens <= 65536 ? "0.99" : "0.95");
        if (muon()) set("muon-momentum", best.step_tokens <= 65536 ? "0.9" : "0.95");
        const char* const needs_bf16 = s.precision.fp8 != Fp8::off        ? "because of --fp8"
                                       : s.precision.stochastic_rounding ? "because of --stochastic-rounding"
                                                                         : nullptr;
        set("dtype", name_of(facts_.gpu || needs_bf16 ? kernels::DType::bf16 : facts_.speed.dtype, kDTypes),
            needs_bf16   ? needs_bf16
            : facts_.gpu ? ""
                         : format("bf16 takes %.2g of the time here", 1 / facts_.speed.bf16_gain));
        set("recompute", "none");
        if (steps >= 2 * kLines) set("log-every", std::to_string(steps / kLines));
        choose_validations(best, steps, passes);
    }

    void choose_masks(const Candidate& best) {
        constexpr char kAsTrained[] = "as the model of --init was trained";
        if (facts_.mask_document_start) set("mask-document-start", "on", kAsTrained);
        const double starts = double(best.seq_len) / facts_.tokens_per_document;  // in a row
        if (facts_.document_mask)
            set("document-mask", *facts_.document_mask ? "on" : "off", kAsTrained);
        else if (starts >= kDocumentsOfRow && !facts_.is_trained && !facts_.gpu)
            set("document-mask", "on", format("%.2g documents start in a sequence", starts));
        else
            set("document-mask", "off");
    }

    void choose_validations(const Candidate& best, std::int64_t steps, double passes) {
        const RunSettings& s = settings_;
        const bool validates = facts_.val_tokens > 0 && (is_free("val-every") || s.validation.every > 0);
        // A forward pass takes a third of the time of a step. A short run has fewer validations, of fewer tokens.
        const double all = 3 * best.tokens, most = kMostOfValidations * all,
                     usual = std::max(kShareOfValidations * all / kValidations, kLeastOfValidation),
                     tokens = std::max(std::min(usual, most / 2), double(best.seq_len));
        const auto count = std::int64_t(std::clamp(most / tokens - 1, 1.0, double(kValidations)));
        set("val-every", facts_.val_tokens > 0 ? std::to_string(std::max<std::int64_t>(steps / count, 1))
                                               : std::to_string(ValidationSettings().every),
            validates ? counted(count, "validation") : "");
        set("val-tokens", std::to_string(std::min<std::int64_t>(power_of_two(tokens), 10485760)));
        const bool saves = !s.checkpoints.output_dir.empty() || s.dry_run.plans,
                   repeats = validates && passes > std::min(kPasses, 0.7 * most_passes(best.model)) &&
                             !s.data.overfit_batch;
        const std::string too_many = repeats ? format("%.3g passes may be too many", passes) : "";
        set("stop-after", repeats ? "5" : "0", too_many);
        const bool keeps = is_free("keep-checkpoints") || s.checkpoints.keep > 0,
                   best_is_kept = is_free("keep-best") ? repeats && saves && keeps : s.checkpoints.keep_best;
        set("keep-best", best_is_kept ? "on" : "off", best_is_kept ? too_many : "");
        set("keep-checkpoints", best_is_kept ? "1" : "0");
    }

    const Facts& facts_;
    const RunSettings& settings_;
    RunSettings read_;  // for the table
    OptionList table_;
    Chosen chosen_{};
    bool is_limited_ = false;  // some models are too large for the length
};

}  // namespace

double training_seconds(double minutes) { return minutes * 60 * kShareOfTraining * (1 - kShareOfValidations); }

double expected_loss(const Facts& facts, const ModelConfig& model, double tokens) {
    const double passes = tokens / facts.tokens, most = repeats_of(facts, model),
                 as_new = passes <= 1 ? tokens : facts.tokens * (1 + most * (1 - std::exp(-(passes - 1) / most)));
    const double shallow = model.layers == 1 && tokens > kTokensOfOneLayer ? kOneLayer : 1;
    return shallow * std::pow(facts.bigram_loss, kBigramPower) * std::pow(facts.zstd_loss, kZstdPower) *
           (kFloor + kScale * std::sqrt(kOfModel * std::pow(parameters_of(model) / 1e6, -kModelPower) +
                                        kOfData * std::pow(as_new * facts.bytes_per_token / 1e7, -kDataPower)));
}

std::optional<ChosenValue> choose_optimizer(const Facts& facts, const RunSettings& settings) {
    RunSettings read = settings;
    const OptionList table = option_table(read);
    if (!table["optimizer"].is_left_to_run()) return {};
    ChosenValue chosen{"optimizer", "muon", "lower losses than AdamW at every size that was measured"};
    const double between = kRateAt * std::sqrt(kMuon.rate);  // good rates of AdamW and of Muon
    if (facts.is_of_muon) chosen.reason = "as the run that trained the model of --init";
    else if (facts.is_trained) chosen = {"optimizer", "adamw", "as the weights of --init, most likely"};
    else if (!table["lr"].is_left_to_run() && settings.schedule.curve.peak <= between)
        chosen = {"optimizer", "adamw", "because of --lr: Muon's rates are higher"};
    RunSettings plain = all_decided({});
    const OptionList defaults = option_table(plain);
    for (std::size_t i = 0; i < table.options.size(); ++i) {
        const Option& option = table.options[i];
        const bool is_given = !option.is_left_to_run() && option.values() != defaults.options[i].values();
        if (is_given && option.needs.name == "optimizer")
            chosen = {"optimizer", option.needs.value, "because of --" + option.name()};
    }
    return chosen;
}

Chosen choose(const Facts& facts, const RunSettings& settings) { return Chooser(facts, settings).choose(); }

}  // namespace llmc
