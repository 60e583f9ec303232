// chosen_values.cpp - the facts that a choice depends on, and what is said of it
#include "llmc/run/start/chosen_values.h"

#include <zstd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <numbers>

#include "kernels/base/error.h"
#include "llmc/base/number_text.h"
#include "llmc/base/terminal.h"
#include "llmc/comm/agreement.h"
#include "llmc/run/checkpoint/checkpoint_writer.h"
#include "llmc/text/bpe_merges.h"
#include "llmc/text/tokenizer.h"

namespace llmc {
namespace {

constexpr std::int64_t kTokensOfSample = 300000;
constexpr double kPassesAsNew = 4, kTokensOfFineweb = 1e10, kTokensOfShard = 1e8;  // as dev/data/prepare writes them
constexpr double kAccuracy = 0.13;  // of the expected loss, at most: dev/results/2026-11-28-auto.md

// What part of the tokens that a run reads is of each shard.
std::vector<double> shares_of(const ShardSet& shards) {
    std::vector<double> shares;
    double all = 0;
    for (const Corpus& corpus : shards.corpora()) {
        const std::int64_t first = std::ssize(shares), end = first + corpus.shards;
        double tokens = 0;
        for (std::int64_t shard = first; shard < end; ++shard) tokens += double(shards[shard].tokens());
        const double weight = shards.is_weighted() ? double(corpus.weight) : tokens;
        for (std::int64_t shard = first; shard < end; ++shard)
            shares.push_back(double(shards[shard].tokens()) / tokens * weight);
        all += weight;
    }
    for (double& share : shares) share /= all;
    return shares;
}

// Of one pass; of corpora with weights, until the one that repeats most has been read once.
double tokens_per_pass(const ShardSet& shards) {
    if (!shards.is_weighted()) return double(shards.tokens());
    const auto shares = shares_of(shards);
    double least = INFINITY;
    for (std::int64_t i = 0; i < shards.size(); ++i)
        least = std::min(least, double(shards[i].tokens()) / shares[std::size_t(i)]);
    return least;
}

// Bytes of text per token of `sample`; without a table an estimate from sizes that were measured.
double bytes_per_token(const RunFiles& files, const std::vector<std::uint16_t>& sample) {
    const Vocabulary vocabulary = files.train->vocabulary();
    const auto tokenizer = vocabulary.merges != 0 ? bpe_of_data(files, {}) : tokenizer_for(vocabulary);
    const std::vector<std::uint16_t> bytes = tokenizer->token_bytes();
    if (bytes.empty()) return std::clamp(0.42 * std::log2(double(vocabulary.size)) - 1.3, 1.0, 4.5);
    double sum = 0;
    for (const std::uint16_t id : sample) sum += bytes[id];
    return std::max(sum / double(sample.size()), 0.1);
}

// `tokens` in blocks of 256 at equal distances, as many of each corpus as its weight says.
std::vector<std::uint16_t> sample_of(const ShardSet& shards, std::int64_t tokens) {
    constexpr std::int64_t kBlock = 256;
    std::vector<std::uint16_t> sample;
    const auto shares = shares_of(shards);
    const double all = std::min(double(tokens), tokens_per_pass(shards)) / kBlock;
    for (std::int64_t i = 0; i < shards.size(); ++i) {
        const std::int64_t blocks = shards[i].tokens() / kBlock,
                           wanted = std::llround(all * shares[std::size_t(i)]),
                           taken = std::clamp<std::int64_t>(wanted, 1, std::max<std::int64_t>(blocks, 1));
        for (std::int64_t block = 0; block < taken; ++block) {
            const std::int64_t first = block * blocks / taken * kBlock;
            const auto ids = shards[i].read(first, std::min(kBlock, shards[i].tokens() - first));
            sample.insert(sample.end(), ids.begin(), ids.end());
        }
    }
    return sample;
}

// The loss on `held_out`, in nats per token, of a bigram model with absolute discounting (Ney et al. 1994).
double bigram_loss(const std::vector<std::uint16_t>& sample, const std::vector<std::uint16_t>& held_out,
                   int vocabulary) {
    constexpr double kDiscount = 0.75, kAdded = 0.5;
    std::vector<double> count(std::size_t(vocabulary), kAdded), after(count.size()), kinds(count.size());
    std::vector<std::uint32_t> pairs;  // sorted
    const auto pair_of = [](const auto& ids, std::size_t i) { return std::uint32_t(ids[i - 1]) << 16 | ids[i]; };
    for (const std::uint16_t id : sample) ++count[id];
    for (std::size_t i = 1; i < sample.size(); ++i) pairs.push_back(pair_of(sample, i));
    std::ranges::sort(pairs);
    for (std::size_t i = 0; i < pairs.size(); ++i) {
        ++after[pairs[i] >> 16];
        if (i == 0 || pairs[i] != pairs[i - 1]) ++kinds[pairs[i] >> 16];
    }
    const double all = double(sample.size()) + kAdded * vocabulary;
    double sum = 0;
    for (std::size_t i = 1; i < held_out.size(); ++i) {
        const std::uint16_t before = held_out[i - 1];
        const auto [first, last] = std::ranges::equal_range(pairs, pair_of(held_out, i));
        const double single = count[held_out[i]] / all, times = double(last - first);
        sum -= std::log(after[before] == 0 ? single
                                           : (std::max(times - kDiscount, 0.0) + kDiscount * kinds[before] * single) /
                                                 after[before]);
    }
    return sum / double(std::max<std::size_t>(held_out.size() - 1, 1));
}

// What zstd adds to the compressed sample for `held_out`, in nats per token: less for texts that repeat themselves.
double zstd_loss(std::vector<std::uint16_t> sample, const std::vector<std::uint16_t>& held_out) {
    const auto bytes_of = [](const std::vector<std::uint16_t>& ids) {
        std::vector<std::byte> packed(ZSTD_compressBound(2 * ids.size()));
        return double(ZSTD_compress(packed.data(), packed.size(), ids.data(), 2 * ids.size(), ZSTD_CLEVEL_DEFAULT));
    };
    const double before = bytes_of(sample);
    sample.insert(sample.end(), held_out.begin(), held_out.end());
    return 8 * std::numbers::ln2 * std::max(bytes_of(sample) - before, 1.0) /
           double(std::max<std::size_t>(held_out.size(), 1));
}

Facts facts_of(const RunSettings& settings, const RunFiles& files, const StartingPoint* start, const Context& context) {
    const int ranks = settings.dry_run.ranks > 0 ? int(settings.dry_run.ranks) : context.world->size();
    Facts facts{.vocabulary = files.vocabulary().size, .ranks = ranks,
                .gpu = device::is_gpu() || settings.dry_run.elsewhere(),
                .memory = double(context.device.memory_available()) / (device::memory_is_host_memory() ? ranks : 1)};
    if (files.train) facts.tokens = tokens_per_pass(*files.train);
    if (files.val) facts.val_tokens = double(files.val->tokens());
    if (start) facts.model = start->config, facts.is_trained = start->checkpoint.has_value();
    if (facts.is_trained && start->run) {
        facts.is_of_muon = start->run->optimizer.kind == &kMuon;
        facts.document_mask = start->run->data.document_mask;
        facts.mask_document_start = start->run->data.mask_document_start;
    }
    return facts;
}

}  // namespace

ChosenValues choose_values(RunSettings& settings, const RunFiles& files, const StartingPoint* start, bool resumes,
                           Tuning& tuning, Context& context) {
    Communicator& ranks = *context.world;
    ChosenValues values{.facts = together(ranks, [&] { return facts_of(settings, files, start, context); })};
    const OptionList table = option_table(settings);
    const auto is_free = [&](const char* flag) { return table[flag].is_left_to_run(); };
    nlohmann::json of_text;  // what rank 0 finds
    on_first_rank(ranks, [&] {
        const bool matters = is_free("init") || is_free("total-batch-tokens") || is_free("lr") ||
                             (is_free("document-mask") && !values.facts.gpu);
        if (!files.train || resumes || settings.eval_only || !matters) return;
        const auto sample = sample_of(*files.train, kTokensOfSample),
                   held_out = sample_of(files.val ? *files.val : *files.train, kTokensOfSample / 3);
        const double bytes = bytes_per_token(files, sample);
        const auto ends = std::ranges::count(sample, files.train->vocabulary().end_of_text);
        const double of_document = double(sample.size()) / double(std::max<std::ptrdiff_t>(ends, 1));
        of_text = {bytes, of_document, bigram_loss(sample, held_out, values.facts.vocabulary) / bytes,
                   zstd_loss(sample, held_out) / bytes};
    });
    if (of_text = gather_json(ranks, of_text)[0]; !of_text.is_null()) {
        Facts& facts = values.facts;
        facts.bytes_per_token = of_text[0], facts.tokens_per_document = of_text[1];
        facts.bigram_loss = of_text[2], facts.zstd_loss = of_text[3];
    }
    // Positions beyond the rows of its run are not trained.
    if (!resumes && start && start->run && is_free("seq-len")) settings.batch.seq_len = start->run->batch.seq_len;
    const std::optional<ChosenValue> optimizer =
        resumes || settings.eval_only ? std::nullopt : choose_optimizer(values.facts, settings);
    if (optimizer) option_table(settings)["optimizer"].set("--optimizer", {optimizer->value});
    const DryRunSettings& dry_run = settings.dry_run;
    const bool in_time = settings.length.is_timed() && (is_free("init") || is_free("total-batch-tokens") ||
                                                        is_free("val-every") || is_free("val-tokens"));
    if (dry_run.tokens_per_second > 0 && start) values.facts.speed = speed_of_model(settings, start->config);
    else if (dry_run.peak_tflops > 0) values.facts.speed = speed_of_peak(dry_run.peak_tflops, values.facts.ranks);
    else if (dry_run.elsewhere() || settings.eval_only) values.facts.speed = {};
    else if (dry_run.plans || (!resumes && (in_time || (is_free("dtype") && !device::is_gpu()))))
        values.facts.speed = measure_speed(settings, values.facts.vocabulary, /*confirms=*/in_time, tuning, context);
    const Facts& facts = values.facts;
    together(ranks, [&] {
        require(dry_run.tokens_per_second == 0 || start, "--speed", dry_run.tokens_per_second,
                "the model that has this speed", "set --init, or use --peak-tflops");
        require(!settings.eval_only || !is_free("init"), "--init", "auto with --eval-only", "the model to evaluate",
                "set --init to the folder of a run or a checkpoint");
        if (!resumes && !settings.eval_only) {
            values.chosen = choose(facts, settings);
            for (const ChosenValue& one : values.chosen->values) table[one.flag].set("--" + one.flag, {one.value});
            if (optimizer) values.chosen->values.insert(values.chosen->values.begin(), *optimizer);
        }
        if (settings.eval_only) {
            if (is_free("keep-checkpoints")) settings.checkpoints.keep = settings.checkpoints.keep_best ? 1 : 0;
            if (is_free("document-mask")) settings.data.document_mask = facts.document_mask == true;
            if (is_free("mask-document-start")) settings.data.mask_document_start = facts.mask_document_start;
        }
        settings = all_decided(settings);
        check_together(settings, {});
    });
    return values;
}

StartupItem chosen_item(const ChosenValues& values) {
    const auto is_said = [](const ChosenValue& one) { return one.value != "auto"; };  // that is decided elsewhere
    if (!values.chosen || std::ranges::none_of(values.chosen->values, is_said)) return {};
    const Facts& facts = values.facts;
    const Chosen& chosen = *values.chosen;
    std::string lines = "chosen";
    if (chosen.seconds)
        lines += " for " + clock_text(*chosen.seconds) + " at " + short_text(chosen.tokens / *chosen.seconds) +
                 " tokens/s";
    lines += ": " + short_text(chosen.tokens) + " tokens";
    if (chosen.is_assumed) lines += ", an assumption, as there are no data";
    if (std::isfinite(facts.tokens)) lines += format(", %.3g passes", chosen.tokens / facts.tokens);
    lines += " (what is given stays)\n";
    std::vector<std::string> others;
    nlohmann::ordered_json reasons = nlohmann::ordered_json::object();
    for (const ChosenValue& one : chosen.values) {
        const auto& [flag, value, reason] = one;
        if (!is_said(one)) continue;
        reasons[flag] = reason;
        const std::string text = "--" + flag + ' ' + value;
        if (reason.empty()) others.push_back(text);
        else lines += "  " + text + ": " + reason + '\n';
    }
    lines += wrapped(" ", others);
    nlohmann::ordered_json fields = {{"chosen", reasons}};
    if (chosen.loss) {
        const double loss = *chosen.loss * facts.bytes_per_token;
        lines += format("  expected: a validation loss near %.3g (%.2f to %.2f), ", loss, (1 - kAccuracy) * loss,
                        (1 + kAccuracy) * loss) +
                 format("%.3g bits per byte\n", *chosen.loss / std::numbers::ln2);
        fields["expected_nats_per_byte"] = *chosen.loss;
    }
    return {lines, fields};
}

std::string figures_text(const RunPlan& plan, const RunData& data, const Speed& speed) {
    if (!plan.setup.training) return "";
    const RunSettings& s = plan.settings;
    const StepSize step = plan.steps.at(plan.first_step + 1);
    const bool muon = s.optimizer.kind == &kMuon;
    std::string text = "plan\n";
    std::optional<double> step_seconds;
    if (speed.is_known()) {
        const double each = s.dry_run.tokens_per_second > 0
                                ? 1 / double(s.dry_run.tokens_per_second)
                                : speed.seconds_per_token(plan.setup.config, s.batch.seq_len, step.positions, muon,
                                                          plan.pair_share());
        step_seconds = each * double(step.positions);
        text += "  speed: " + short_text(1 / each) + " tokens/s, " + speed.source + '\n';
    } else {
        text += "  speed: not known; --speed or --peak-tflops says it\n";
    }
    std::optional<double> tokens, seconds;
    if (plan.steps.total.value_or(0) > 0) tokens = double(plan.steps.positions_in(*plan.steps.total));
    else if (step_seconds && s.length.minutes > 0)
        tokens = training_seconds(s.length.minutes) / *step_seconds * double(step.positions);
    if (s.length.is_timed()) seconds = s.length.minutes * 60;
    else if (tokens && step_seconds) seconds = *tokens / double(step.positions) * *step_seconds;
    text += "  length: " + (tokens ? short_text(*tokens) + " tokens" : "not known") +
            (seconds ? ", " + clock_text(*seconds) + format(" (%.3g hours)", *seconds / 3600) : "");
    const double here = data.files.train ? tokens_per_pass(*data.files.train) : 0;
    if (tokens && here > 0) text += format(", %.3g passes over the text", *tokens / here);
    text += '\n';
    if (s.dry_run.price > 0 && seconds)
        text += format("  cost: %.4g at %g an hour\n", *seconds / 3600 * s.dry_run.price, s.dry_run.price);
    double checkpoint = 0;
    for (Sharding sharding = plan.setup.sharding; sharding.rank < sharding.ranks; ++sharding.rank)
        checkpoint += double(CheckpointWriter::copy_bytes(plan.table, sharding, plan.optimizer));
    text += "  disk: a checkpoint takes " + mebibytes(std::size_t(checkpoint)) +
            (tokens ? ", the text that the run reads " +
                          mebibytes(2 * std::size_t(here > 0 ? std::min(*tokens, here) : *tokens)) : "") + '\n';
    if (tokens && *tokens > kPassesAsNew * here && data.files.vocabulary() == kGpt2Vocabulary)
        text += format("  text for one pass: dev/data/prepare fineweb --shards %.0f\n",
                       std::ceil(std::min(*tokens, kTokensOfFineweb) / kTokensOfShard) + 1);
    if (plan.setup.sharding.ranks > 1 && !plan.optimizer.kind->local_gradients && !plan.world) {
        const double bytes = 2.0 * (plan.reduces_in_bf16() ? 2 : 4) * double(plan.table.parameters());
        text += format("  links: a rank sends and receives %.3g MB a step", bytes / 1e6);
        for (const double gigabits : {10.0, 100.0})
            text += format("%s %g Gbit/s take ", gigabits == 10 ? ":" : ",", gigabits) +
                    time_text(8e-9 * bytes / gigabits);
        text += (step_seconds ? " of a step's " + time_text(*step_seconds) : "") + '\n';
    }
    return text + (step_seconds && plan.setup.sharding.ranks > 1 ? "  time and cost are without communication\n" : "");
}

}  // namespace llmc
