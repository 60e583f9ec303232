// options.cpp - the table of flags, and its values as text and JSON
#include "llmc/run/options/options.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <limits>
#include <nlohmann/json.hpp>

#include "kernels/base/error.h"
#include "llmc/base/json_text.h"
#include "llmc/base/number_text.h"
#include "llmc/base/option.h"
#include "llmc/base/value_text.h"
#include "llmc/text/utf8.h"

namespace llmc {
namespace {

bool is_auto(const Option& option) {
    if (const auto* const range = std::get_if<Real>(&option.limits))
        return range->has_auto && std::isnan(*std::get<double*>(option.field));
    const auto* const range = std::get_if<Whole>(&option.limits);
    return range && range->has_auto && *std::get<std::int64_t*>(option.field) == 0;
}

nlohmann::json json_of_value(const Option& option) {
    if (is_auto(option)) return "auto";
    return std::visit([]<class Field>(const Field& field) {
        if constexpr (std::is_same_v<Field, Choice>) return nlohmann::json(field.name());
        else if constexpr (std::is_same_v<Field, std::vector<std::string>*>)  // one is text, as in older versions
            return field->size() > 1 ? nlohmann::json(*field) : nlohmann::json(field->empty() ? "" : field->front());
        else return nlohmann::json(*field);
    }, option.field);
}

}  // namespace

// `entry(flag, field, help, columns)` in the group of --help that the last `group(name)` names.
std::vector<Option> option_table(Options& o) {
    using enum OnResume;
    using enum OnRanks;
    const Quantity length{"length"}, warmup{"warm-up"}, step{"step"};
    OptionList list;
    const auto group = [&](const char* name) { list.group = name, list.needs = {}; };
    const auto entry = [&](const char* flag, auto& field, const std::string& help, const auto&... columns) {
        list.entry(flag, field, help, columns...);
    };
    group("Data and model");
    entry(
        "i,train-data", o.train_data,
        "training shards: glob patterns; may be repeated, the shards are read in this order, or in the proportions of "
        "weights: 'web_*.bin:0.7' 'books_*.bin:0.3'",
        of_the_host);
    entry("j,val-data", o.val_data,
          "validation shards: like --train-data; each pattern has a loss of its own, and its weight in their mean",
          of_the_host);
    entry("e,init", o.init,
          "model: d12 (depth 12), gpt3:c768 (GPT-3 with 768 channels), custom:l=4,h=4,c=128[,t=1024][,v=257] (layers, "
          "heads, channels, positions, vocabulary), or a model to start from: a folder, a .safetensors file, or "
          "llm.c's .bin file; or the folder of a run, for its newest checkpoint",
          same);
    entry("o,output-dir", o.output_dir, "folder for log.jsonl and checkpoints; empty: nothing is written",
          of_one_start);
    group("Batch and length");
    entry("b,micro-batch", o.micro_batch,
          "micro-batch size: sequences in one forward and backward pass of a rank; auto: the largest that divides a "
          "step's sequences per rank (see -d) and fits the memory plan",
          Whole{0, 1 << 20, true});
    entry("t,seq-len", o.seq_len, "sequence length, in tokens; auto: the model's positions, at most 1024",
          Whole{0, 1 << 20, true}, same);
    entry("d,total-batch-tokens", o.total_batch_tokens,
          "tokens in one optimizer step over all ranks, a multiple of micro-batch * seq-len * ranks; gradients are "
          "accumulated over the micro-batches; 0: one micro-batch per rank",
          Whole{0, kMany}, step);
    entry("batch-schedule", o.batch_schedule,
          "tokens in one step, instead of -d, as FROM:TOKENS,...; 0:65536,200M:131072: 131072 in steps that begin "
          "after 200M tokens or more; empty: -d for all steps",
          step);
    entry("batch-lr-exponent", o.batch_lr_exponent,
          "scale the learning rate by (tokens of the step / tokens of the first step)^X; 0: do not scale it",
          Real{0, 1});
    entry("batch-beta-scaling", o.batch_beta_scaling,
          "decay second moments by beta2^(tokens of the step / tokens of the first step): the same decay per token");
    entry("x,max-steps", o.max_steps, "number of optimizer steps; 0: as many as --epochs or --max-minutes needs",
          Whole{0, kMany}, length);
    entry("max-tokens", o.max_tokens,
          "instead of --max-steps: tokens of the run, rounded up to whole steps (see -d); 0: not set", Whole{0, kMany},
          length);
    entry("epochs", o.epochs,
          "number of passes over the training data, without --max-steps and --max-tokens; auto: 1, or with "
          "--max-minutes as many as fit",
          Whole{0, 1000000, true}, length);
    entry("max-minutes", o.max_minutes,
          "without --max-steps, --max-tokens and --epochs: length of the whole run, with the time before a resume, "
          "validations, samples and checkpoints; the learning rate then follows the time. With one of them: time from "
          "this start until the run ends early, with a last validation, samples and a checkpoint, within a round of "
          "--outer-steps with a checkpoint only. 0: no limit",
          Real{0, 1e7});
    entry("shuffle", o.shuffle,
          "read the sequences in random order, a new one for every epoch (see --seed); off: in the order of the "
          "shards, which fits documents that are in random order already, such as FineWeb's",
          same);
    entry("mask-document-start", o.mask_document_start,
          "ignore the loss on the first token of every document, which has no context, in training and validation",
          same);
    entry("pad-last", o.pad_last,
          "pad the last sequence of a shard and the last step of an epoch with ignored targets, so that every token is "
          "used",
          same);
    entry("a,overfit-batch", o.overfit_batch,
          "repeat the first step's batch in every step, to check that the loss goes to 0", same);
    group("Optimizer");
    entry("l,lr", o.lr, "peak learning rate", Real{0, 1e3});
    entry("u,warmup-steps", o.warmup_steps, "steps of linear learning-rate warm-up; 0 in a run whose length is "
          "--max-minutes: 5 % of the time", Whole{0, kMany}, warmup);
    entry("warmup-tokens", o.warmup_tokens,
          "instead of --warmup-steps: tokens of the warm-up, rounded up to whole steps (see -d); 0: not set",
          Whole{0, kMany}, warmup);
    entry("q,final-lr-fraction", o.final_lr_fraction,
          "final learning rate as a fraction of the peak; in a run of steps that of the step after the last one, as in "
          "llm.c", Real{0, 1});
    entry("k,lr-schedule", o.lr_schedule,
          "learning-rate schedule after the warm-up; wsd: constant, then a cool-down at the end of the run",
          kLrSchedules);
    list.needs = {"lr-schedule", name_of(LrSchedule::wsd, kLrSchedules)};
    entry("cooldown-fraction", o.cooldown_fraction,
          "share of the run's steps, or of its time, in the cool-down of wsd; at most one step is none", Real{0, 1});
    entry("cooldown-shape", o.cooldown_shape,
          "decay in the cool-down of wsd; 1-sqrt: final + (peak - final) * (1 - sqrt(x)), where x goes from 0 to 1",
          kCooldownShapes);
    list.needs = {};
    entry("c,weight-decay", o.weight_decay, "weight decay, of matrices and embeddings only",
          Real{0, 1e3});
    entry("beta1", o.beta1, "AdamW decay rate of the first moment", Real{0, 0.9999999});
    entry("beta2", o.beta2, "AdamW decay rate of the second moment", Real{0, 0.9999999});
    entry("eps", o.eps, "AdamW epsilon", Real{1e-30, 1});
    entry("grad-clip", o.grad_clip, "clip the gradient to this global L2 norm; 0: off", Real{0, 1e30});
    entry("skip-loss-z", o.skip_loss_z,
          "skip the update of a step whose loss is more than this many standard deviations above the mean of the last "
          "128 steps that made an update; 0: off",
          Real{0, 1e30});
    entry("skip-norm-z", o.skip_norm_z, "like --skip-loss-z, for the gradient norm before clipping; 0: off",
          Real{0, 1e30});
    std::string optimizers = "optimizer";
    for (const auto& [name, kind] : kOptimizers)
        if (*kind->help) optimizers.append("; ").append(name).append(" ").append(kind->help);
    entry("optimizer", o.optimizer, optimizers, kOptimizers);
    for (std::size_t i = 0; i < std::size(kOptimizers); ++i) {
        std::any& own = o.of_optimizers[i];
        if (!own.has_value()) own = kOptimizers[i].second->own();
        list.needs = {"optimizer", std::string(kOptimizers[i].first)};
        kOptimizers[i].second->flags(list, own);
    }
    group("Evaluation and sampling");
    entry("v,val-every", o.val_every,
          "steps between validations; also before the first and after the last step; 0: off", Whole{0, kMany});
    entry("val-tokens", o.val_tokens, "tokens per validation, the same ones each time; all if there are fewer",
          Whole{1, kMany});
    entry("val-spread", o.val_spread,
          "take them from all parts of the validation data, in sequences at equal distances; off: from its start, as "
          "llm.c");
    entry("stop-after", o.stop_after,
          "end the run after this many consecutive validations without a new lowest loss; 0: off", Whole{0, kMany});
    entry("s,sample-every", o.sample_every, "steps between samples; also after the last step; 0: off",
          Whole{0, kMany});
    entry("g,sample-tokens", o.sample_tokens, "new tokens per sample", Whole{1, 1 << 20});
    entry("samples", o.samples, "number of samples every --sample-every steps", Whole{1, 1000});
    entry("prompt", o.prompt, "text that samples continue; empty: the start of a document");
    entry("top-k", o.top_k, "sample only from the k most likely tokens; 0: from all", Whole{0, 65536});
    entry("top-p", o.top_p,
          "nucleus sampling: sample only from the smallest set of tokens with at least this cumulative probability; 1: "
          "off",
          Real{1e-6, 1});
    entry("temperature", o.temperature, "softmax temperature for sampling; 0: greedy", Real{0, 100});
    entry("hellaswag", o.hellaswag,
          "HellaSwag examples to score the model on: a file made by dev/data/prepare hellaswag, or llm.c's "
          "hellaswag_val.bin",
          of_the_host);
    entry("hellaswag-every", o.hellaswag_every,
          "steps between HellaSwag scores; also after the last step, unless --max-minutes ended the run",
          Whole{1, kMany});
    entry("eval-only", o.eval_only, "run validation, HellaSwag and samples once, then exit");
    group("Checkpoint");
    entry("n,checkpoint-every", o.checkpoint_every, "steps between checkpoints; 0: only one, at the end of the run",
          Whole{0, kMany});
    entry("checkpoint-minutes", o.checkpoint_minutes,
          "minutes between checkpoints, in addition to --checkpoint-every; 0: off", Real{0, 1e7});
    entry("keep-checkpoints", o.keep_checkpoints,
          "keep the newest N checkpoints; older ones are deleted when a newer one is complete; 0: keep all",
          Whole{0, kMany});
    entry("major-every", o.major_every,
          "never delete checkpoints whose step is a multiple of N, or that waited for the end of its round; 0: off",
          Whole{0, kMany});
    entry("keep-best", o.keep_best,
          "save a checkpoint after every validation with a new lowest loss, link the folder best to it, and delete the "
          "one before unless --keep-checkpoints or --major-every keeps it; needs -o, -j and --keep-checkpoints N");
    entry("y,resume", o.resume,
          "resume training from a checkpoint; auto: the newest complete one in --output-dir, or start a new run if "
          "there is none; or the folder of a checkpoint; or never",
          of_one_start);
    entry("allow-new-data", o.allow_new_data,
          "with --resume: allow training shards that differ from the checkpoint's; they are read from their start",
          of_one_start);
    group("Tokenizer");
    entry("merges", o.merges,
          "file with GPT-2's BPE merges, for text in prompts and samples and for the tokenizer in checkpoints: "
          "vocab.bpe, merges.txt or tokenizer.json; empty: from the folder of --init, else "
          "data/gpt2/vocab.bpe (written by scripts/get_gpt2_tokenizer.sh)",
          of_the_host);
    entry("allow-larger-vocabulary", o.allow_larger_vocabulary,
          "allow a model whose vocabulary is larger than the shards'; the extra ids never occur, and checkpoints "
          "keep the tokenizer files and eos_token_id of a model that adds tokens to GPT-2's");
    group("Data parallelism");
    entry("z,zero-stage", o.zero_stage,
          "ZeRO stage: 0 shards nothing over ranks, 1 the optimizer state (Adam moments; with bf16 also master "
          "weights), 2 also the gradients",
          Whole{0, 2});
    entry("reduce-dtype", o.reduce_dtype, "data type of gradients in the all-reduce or reduce-scatter", kDTypes);
    entry("comm", o.comm, "collectives backend; auto: nccl if every rank has its own GPU, else mpi", kTransports);
    entry("outer-steps", o.outer_steps,
          "each worker makes this many local steps, then an outer step synchronizes their weights (DiLoCo); 0: all "
          "ranks sum their gradients in every step",
          Whole{0, kMany});
    list.needs = {"outer-steps", "above 0"};
    entry("outer-workers", o.outer_workers,
          "number of workers, such as that of the nodes; each has as many consecutive ranks, which sum their "
          "gradients and need -z 1 or 2; auto: every rank is a worker",
          Whole{0, kMany, true});
    entry("outer-lr", o.outer_lr, "learning rate of outer steps; auto: 0.7, or 1 with --outer-steps 1",
          Real{1e-6, 2, true});
    entry("outer-momentum", o.outer_momentum, "Nesterov momentum of outer steps; auto: 0.6, or 0 with --outer-steps 1",
          Real{0, 0.9999999, true});
    entry("outer-bits", o.outer_bits,
          "bits per element of what workers send in an outer step: 32; 4, 15 levels of the changes; 1, their signs, "
          "for --outer-steps 1", Whole{0, 64});
    entry("outer-errors", o.outer_errors,
          "carry what 4 bits lose over to the next outer step, which takes 4 bytes per parameter; 1 bit always does");
    entry("outer-error-decay", o.outer_error_decay, "factor on what is carried over, per outer step", Real{0, 1});
    entry("outer-start-step", o.outer_start_step,
          "number of data-parallel steps before the first local one; without effect in a run that has made local steps",
          Whole{0, kMany});
    group("Noise scale");
    entry("noise-scale", o.noise_scale,
          "estimate the gradient noise scale by comparing gradients of ranks (rank) or of micro-batches (micro) with "
          "those of the whole batch",
          kNoiseEstimators);
    entry("noise-scale-beta", o.noise_scale_beta, "decay rate of the moving averages of --noise-scale",
          Real{0, 0.9999999});
    group("Precision and memory");
    entry("dtype", o.dtype,
          "data type of parameters and activations; master weights, Adam moments and gradients are fp32", kDTypes);
    entry("stochastic-rounding", o.stochastic_rounding,
          "with bf16: round master weights to parameters stochastically (unbiased) instead of to nearest");
    entry("r,recompute", o.recompute,
          "activation checkpointing; which activations the backward pass recomputes to save memory", kRecomputeLevels);
    group("Machine");
    entry("attention", o.attention, "attention kernels on a GPU; auto: the fastest that is available (see --tune)",
          kernels::kAttentionMethods);
    entry("bf16-arithmetic", o.bf16_arithmetic,
          "bf16 matrix products on a CPU; native: bf16 instructions; widen: in fp32; measure: the faster of the two "
          "(see --tune)",
          kBf16Arithmetics);
    entry("tune", o.tune,
          "autotuning of algorithms; off: use the library's defaults; auto: use the results in --tune-file, and time "
          "and add what is missing there; again: time everything again; with mpirun write --tune=again",
          kTunes);
    entry("tune-file", o.tune_file,
          "file for autotuning results; empty: $XDG_CACHE_HOME/train_gpt2/choices.json, or in ~/.cache",
          of_the_host);
    entry("deterministic", o.deterministic, "on a GPU: use only deterministic kernels, even if others are faster");
    entry("threads", o.threads,
          "CPU threads per rank; 0: one per hardware thread of the rank's cores, within its control group's CPU quota",
          Whole{0, 1024}, of_the_host);
    entry("device", o.device, "index of the first GPU; the ranks of a host use this one and the following ones",
          Whole{0, 1023}, of_the_host);
    entry("log-gpu", o.log_gpu,
          "log NVML readings of rank 0's GPU with every step: energy, power, clocks, temperature, memory in use, "
          "utilization and throttle reasons");
    entry("seed", o.seed, "random seed for initial weights, shuffling, samples and stochastic rounding",
          Whole{0, std::numeric_limits<std::int64_t>::max()}, same);
    entry("f,tf32", o.tf32, "on a GPU: use TF32 tensor cores (10-bit mantissa) for fp32 matrix products");
    entry("ignore-memory-plan", o.ignore_memory_plan,
          "start even if the memory plan exceeds the available memory");
    group("Other");
    entry("log-every", o.log_every,
          "print every N-th step on the terminal, the first, the last, and one at least every 30 s; log.jsonl has "
          "every step",
          Whole{1, kMany});
    entry("verbose", o.verbose, "print versions, options, data and memory plan before the first step in detail");
    entry("dry-run", o.dry_run, "print all options, the data, the memory plan and suggestions, then exit",
          of_one_start);
    entry("ranks", o.ranks,
          "with --dry-run: plan for this number of ranks, also without data; 0: for those that were started",
          Whole{0, 1 << 20}, of_one_start);
    entry("memory", o.memory,
          "with --dry-run: plan for ranks with this memory each, such as 80G (GiB); empty: that of this machine",
          of_one_start);
    return list.options;
}

std::set<std::string> names_of_options(const std::function<bool(const Option&)>& which) {
    Options any;
    std::set<std::string> names;
    for (const Option& option : option_table(any))
        if (which(option)) names.insert(long_name(option.flag).substr(2));
    return names;
}

std::string long_name(std::string_view flag) {
    const auto comma = flag.find(',');
    return "--" + std::string(comma == flag.npos ? flag : flag.substr(comma + 1));
}

std::vector<std::string> values_of(const Option& option) {
    if (is_auto(option)) return {"auto"};
    return std::visit(
        []<class Field>(const Field& field) -> std::vector<std::string> {
            if constexpr (std::is_same_v<Field, Choice>) return {field.name()};
            else if constexpr (std::is_same_v<Field, std::string*>) return {*field};
            else if constexpr (std::is_same_v<Field, bool*>) return {*field ? "on" : "off"};
            else if constexpr (std::is_same_v<Field, std::vector<std::string>*>)
                return field->empty() ? std::vector<std::string>{""} : *field;
            else return {text_of_number(*field)};
        },
        option.field);
}

std::string value_of(const std::string& name, const std::vector<Option>& table) {
    const auto name_of_flag = [](const Option& option) { return long_name(option.flag); };
    return values_of(*std::ranges::find(table, "--" + name, name_of_flag)).front();
}
bool is_met(const Needs& needs, const std::vector<Option>& table) {
    if (needs.name.empty()) return true;
    const std::string value = value_of(needs.name, table);
    return needs.value == "above 0" ? value != "0" : value == needs.value;
}

void set_values(const Option& option, const std::string& name, const std::vector<std::string>& values) {
    require(values.size() == 1 || option.is_list(), name, counted(std::int64_t(values.size()), "value"), "one value",
            "only train-data and val-data take lists");
    const auto checked = [&](const std::string& text) {
        require(valid_length(text) == text.size(), name, in_quotes(text), "UTF-8, as in the log and in checkpoints",
                "give a file or folder another name");
        return text;
    };
    if (option.is_list()) {
        auto& list = *std::get<std::vector<std::string>*>(option.field);
        list.clear();
        for (const std::string& text : values)
            if (!text.empty()) list.push_back(checked(text));
        return;
    }
    const std::string& value = values.front();
    const auto within = [&](const auto& range) { return parse_number(name, value, range.least, range.most); };
    if (auto* const* whole = std::get_if<std::int64_t*>(&option.field)) {
        const Whole& range = std::get<Whole>(option.limits);
        **whole = range.has_auto ? number_or_auto<std::int64_t>(name, value, 0, 1, range.most) : within(range);
    } else if (auto* const* real = std::get_if<double*>(&option.field)) {
        const Real& range = std::get<Real>(option.limits);
        **real = range.has_auto ? number_or_auto<double>(name, value, NAN, range.least, range.most) : within(range);
    } else if (auto* const* is_set = std::get_if<bool*>(&option.field)) {
        const auto given = switch_value(value);
        require(given.has_value(), name, in_quotes(value), "true or false");
        **is_set = *given;
    } else if (const auto* const choice = std::get_if<Choice>(&option.field)) {
        choice->set(name, value);
    } else {
        *std::get<std::string*>(option.field) = checked(value);
    }
}

std::any optimizer_settings(const Options& o, std::int64_t warmup_steps, std::span<const int> nodes) {
    const auto kind = std::ranges::find(kOptimizers, o.optimizer, [](const auto& named) { return named.second; });
    return o.optimizer->settings(o.of_optimizers[kind - kOptimizers],
                                 {.zero_stage = o.zero_stage, .warmup_steps = warmup_steps, .is_timed = o.is_timed(),
                                  .nodes = nodes});
}

std::string for_shell(const std::string& text) {
    constexpr std::string_view kPlain = "_./:=,+-%@";
    const auto is_plain = [&](unsigned char c) { return std::isalnum(c) || kPlain.find(char(c)) != kPlain.npos; };
    if (!text.empty() && std::ranges::all_of(text, is_plain)) return text;
    const auto is_control = [](unsigned char c) { return std::iscntrl(c) != 0; };
    const bool escaped = std::ranges::any_of(text, is_control);  // bash's $'...'
    std::string quoted = escaped ? "$'" : "'";
    for (const char c : text) {
        if (is_control(static_cast<unsigned char>(c))) quoted += format("\\x%02x", static_cast<unsigned char>(c));
        else if (c == '\'') quoted += escaped ? "\\'" : "'\\''";
        else quoted += escaped && c == '\\' ? "\\\\" : std::string(1, c);
    }
    return quoted + '\'';
}

std::vector<std::string> flags_of(const Options& options, bool changed) {
    Options read = options, defaults;
    const std::vector<Option> table = option_table(read), table_of_defaults = option_table(defaults);
    std::vector<std::string> flags;
    for (std::size_t i = 0; i < table.size(); ++i) {
        const std::string name = long_name(table[i].flag);
        const std::vector<std::string> values = values_of(table[i]);
        if ((values != values_of(table_of_defaults[i])) != changed) continue;
        for (const std::string& value : values)
            if (table[i].is_switch()) flags.push_back(name + (value == "on" ? "" : "=off"));
            else flags.push_back(name + '=' + for_shell(value));
    }
    return flags;
}

namespace {
template <class Json> Json json_of(const Options& options) {
    Options read = options;
    Json json;
    for (const Option& option : option_table(read)) json[long_name(option.flag).substr(2)] = json_of_value(option);
    return json;
}
}  // namespace

nlohmann::json to_json(const Options& options) { return json_of<nlohmann::json>(options); }
std::string config_text(const Options& options) { return text_of(json_of<nlohmann::ordered_json>(options), 4) + '\n'; }

}  // namespace llmc
