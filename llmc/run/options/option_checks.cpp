// option_checks.cpp - refusals that concern several flags
#include "llmc/run/option_checks.h"

#include <limits>
#include <string>

#include "kernels/device/device.h"
#include "kernels/device/error.h"

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
        if (flag) fail(flag, "given for --optimizer " + o.optimizer, "--optimizer onebit-adam", "add it, or leave the "
                       "flag out");
        return;
    }
    freeze_after(o);
    require(o.onebit_bits == 1 || o.onebit_bits == 32, "--onebit-bits", o.onebit_bits, "1 or 32");
    require(o.zero_stage == 0, "--zero-stage", std::to_string(o.zero_stage) + " with --optimizer onebit-adam", "0",
            "every rank needs all of the momentum to compress it, so its state cannot be sharded");
}

}  // namespace

void check_together(const Options& o) {
    check_onebit(o);
    require(!o.stochastic_rounding || o.dtype == "bf16", "--stochastic-rounding", "given for --dtype " + o.dtype,
            "parameters in bf16", "add --dtype bf16, or leave it out: fp32 parameters are not rounded");
    const std::int64_t micro = o.micro_batch * o.seq_len;  // both below 2^20
    require(micro <= std::numeric_limits<int>::max(), "--micro-batch times --seq-len", micro,
            "at most 2147483647 tokens", "make one of them smaller and -d larger");
    if (o.max_steps > 0)
        require(o.warmup_steps <= o.max_steps, "--warmup-steps", o.warmup_steps,
                "at most --max-steps = " + std::to_string(o.max_steps));
    if (!o.resume.empty() && o.resume != "never") {
        require(!o.eval_only, "--resume", '"' + o.resume + "\" with --eval-only", "training to go on with",
                "name the checkpoint's folder by --init");
        require(!o.output_dir.empty(), "--resume", '"' + o.resume + "\" without --output-dir", "a folder to go on in");
    }
    // As an attention that this device has not: what is asked for cannot be had.
    require(!o.tf32 || device::is_gpu(), "--tf32", "given for a CPU", "a GPU, whose tensor cores multiply in TF32",
            "leave it out");
    require(!(o.eval_only && o.val_data.empty()), "--val-data", "missing",
            "validation shards, since --eval-only was given");
    require(o.eval_only || !o.train_data.empty(), "--train-data", "missing",
            "training shards, such as -i 'data/bible/bible_train_*.bin'",
            "make shards with dev/tokenize, or see --help");
}

}  // namespace llmc
