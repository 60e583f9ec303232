// option_checks.cpp - checks that concern several flags
#include "llmc/run/options/option_checks.h"

#include <limits>
#include <string>

#include "kernels/base/error.h"
#include "kernels/device/device.h"
#include "llmc/base/value_text.h"

namespace llmc {
namespace {

void check_onebit(const Options& o) {
    const Options defaults;
    if (o.optimizer != "onebit-adam") {
        const char* const flag = o.onebit_freeze_step != defaults.onebit_freeze_step ? "--onebit-freeze-step"
                                 : o.onebit_scale != defaults.onebit_scale           ? "--onebit-scale"
                                 : o.onebit_space != defaults.onebit_space           ? "--onebit-space"
                                 : !o.onebit_exclude.empty()                         ? "--onebit-exclude"
                                 : o.onebit_bits != defaults.onebit_bits             ? "--onebit-bits"
                                 : o.onebit_hierarchical                             ? "--onebit-hierarchical"
                                                                                     : nullptr;
        if (flag)
            fail(flag, "set with --optimizer " + o.optimizer, "--optimizer onebit-adam",
                 "set that optimizer, or remove " + std::string(flag));
        return;
    }
    require(freeze_after(o) > 0 || !o.is_timed() || o.has_warmup(), "--onebit-freeze-step",
            in_quotes(o.onebit_freeze_step) + " with --max-minutes as the length of the run",
            "a number of updates, or --warmup-steps, because auto freezes after the warm-up");
    require(o.onebit_bits == 1 || o.onebit_bits == 32, "--onebit-bits", o.onebit_bits, "1 or 32");
    require(o.zero_stage == 0, "--zero-stage", std::to_string(o.zero_stage) + " with --optimizer onebit-adam", "0",
            "1-bit Adam needs the whole momentum on every rank, so the optimizer state cannot be sharded");
}

void check_cooldown(const Options& o) {
    if (o.lr_schedule == "wsd") return;
    const Options defaults;
    const auto require_default = [&](const std::string& flag, const std::string& value, const std::string& unset) {
        require(value == unset, flag, "set with --lr-schedule " + o.lr_schedule, "--lr-schedule wsd",
                "set that schedule, or " + flag + ' ' + unset);
    };
    require_default("--cooldown-fraction", text_of_number(o.cooldown_fraction),
                    text_of_number(defaults.cooldown_fraction));
    require_default("--cooldown-shape", o.cooldown_shape, defaults.cooldown_shape);
}

}  // namespace

void check_resume(const CommandLine& line) {
    if (!line.resumes()) return;
    const Options& o = line.options;
    require(!o.eval_only, "--resume", '"' + o.resume + "\" with --eval-only", "no --resume, as nothing is trained",
            "set --init to the checkpoint's folder");
    require(!o.output_dir.empty(), "--resume", '"' + o.resume + "\" without --output-dir",
            "--output-dir with the folder of the run");
}

void check_together(const CommandLine& line) {
    const Options& o = line.options;
    check_onebit(o);
    check_cooldown(o);
    require(!o.stochastic_rounding || o.dtype == "bf16", "--stochastic-rounding", "set with --dtype " + o.dtype,
            "--dtype bf16", "add it, or remove the flag: fp32 parameters are not rounded");
    const std::int64_t micro = o.micro_batch * o.seq_len;  // both below 2^20
    require(micro <= std::numeric_limits<int>::max(), "--micro-batch times --seq-len", micro,
            "at most 2147483647 tokens", "decrease one of them and increase -d");
    require(o.max_steps == 0 || o.max_tokens == 0, "--max-tokens", o.max_tokens,
            "0 with --max-steps " + std::to_string(o.max_steps), "remove one of them");
    require(o.warmup_steps == 0 || o.warmup_tokens == 0, "--warmup-tokens", o.warmup_tokens,
            "0 with --warmup-steps " + std::to_string(o.warmup_steps), "remove one of them");
    if (o.max_steps > 0)
        require(o.warmup_steps <= o.max_steps, "--warmup-steps", o.warmup_steps,
                "at most --max-steps = " + std::to_string(o.max_steps));
    require(o.micro_batch > 0 || o.total_batch_tokens > 0, "--micro-batch", "auto without --total-batch-tokens",
            "the tokens of a step, of which the micro-batch is a part", "set -d, or a number for -b");
    const Options defaults;  // need no such data, also from a file with all options
    if (line.given.contains("val-every") && o.val_every > 0 && o.val_every != defaults.val_every)
        require(!o.val_data.empty(), "--val-data", "missing", "validation shards, because --val-every is set",
                "set -j, or remove --val-every");
    if (line.given.contains("hellaswag-every") && o.hellaswag_every != defaults.hellaswag_every)
        require(!o.hellaswag.empty(), "--hellaswag", "missing", "a file of examples, because --hellaswag-every is set");
    require(!o.tf32 || device::is_gpu(), "--tf32", "set on a CPU", "a GPU with TF32 tensor cores",
            "remove it");
    require(!o.eval_only || o.max_minutes == 0, "--max-minutes", o.max_minutes, "0 with --eval-only",
            "remove it: an evaluation is made whole; --val-tokens makes it shorter");
    require(!(o.eval_only && o.val_data.empty() && o.hellaswag.empty()), "--val-data", "missing",
            "validation shards, or examples with --hellaswag, because --eval-only is set");
    require(o.eval_only || !o.train_data.empty(), "--train-data", "missing",
            "training shards, for example -i 'data/bible/bible_train_*.bin'",
            "make shards with dev/tokenize, or see --help");
}

}  // namespace llmc
