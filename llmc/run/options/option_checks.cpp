// option_checks.cpp - checks that concern several flags
#include "llmc/run/options/option_checks.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <string>

#include "kernels/base/error.h"
#include "kernels/device/device.h"
#include "llmc/base/file_status.h"
#include "llmc/base/option.h"

namespace llmc {
namespace {

// Throws if an option differs from its default though it has no effect.
void check_needs(const Options& o) {
    Options given = o, defaults;
    const std::vector<Option> is = option_table(given), of = option_table(defaults);
    for (std::size_t i = 0; i < is.size(); ++i) {
        const auto& [name, value] = is[i].needs;
        if (values_of(is[i]) == values_of(of[i]) || is_met(is[i].needs, is)) continue;
        const std::string flag = long_name(is[i].flag), needed = "--" + name + ' ';
        fail(flag, "set with " + needed + value_of(name, is), needed + value,
             "set that, or " + flag + '=' + values_of(of[i]).front());
    }
}

void check_outer_steps(const Options& o) {
    if (o.outer_steps == 0) return;
    require(o.outer_bits == 32 || o.outer_bits == 4 || o.outer_bits == 1, "--outer-bits", o.outer_bits, "32, 4 or 1");
    require(!o.optimizer->local_gradients, "--outer-steps",
            "set with --optimizer " + name_of(o.optimizer, kOptimizers), "adamw or muon");
    require(!o.outer_errors || o.outer_bits == 4, "--outer-errors",
            "set with --outer-bits " + std::to_string(o.outer_bits),
            "--outer-bits 4: 32 bits lose nothing, and 1 bit always carries errors over", "remove it");
    require(o.outer_errors || o.outer_bits == 1 || o.outer_error_decay == Options().outer_error_decay,
            "--outer-error-decay", "set without errors that are carried over", "--outer-errors, or --outer-bits 1",
            "remove it");
    require(!o.is_timed(), "--max-minutes", "the length of a run with --outer-steps",
            "a number of steps or tokens, which says where the last round ends", "add --max-steps");
    require(!o.stochastic_rounding, "--stochastic-rounding", "set with --outer-steps",
            "rounding to nearest: workers would round with the same random bits", "remove it");
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
    optimizer_settings(o, std::max(o.warmup_steps, o.warmup_tokens), {});
    check_needs(o);
    require(o.dry_run || (o.ranks == 0 && o.memory.empty()), o.ranks > 0 ? "--ranks" : "--memory",
            "set without --dry-run", "--dry-run, which plans for other machines", "add it, or start ranks with mpirun");
    memory_bytes(o);
    require(!o.stochastic_rounding || o.dtype == kernels::DType::bf16, "--stochastic-rounding",
            "set with --dtype " + name_of(o.dtype, kDTypes), "--dtype bf16",
            "add it, or --stochastic-rounding=off: fp32 parameters are not rounded");
    const std::int64_t micro = o.micro_batch * o.seq_len;  // both below 2^20
    require(micro <= std::numeric_limits<int>::max(), "--micro-batch times --seq-len", micro,
            "at most 2147483647 tokens", "decrease one of them and increase -d");
    if (o.max_steps > 0)
        require(o.warmup_steps <= o.max_steps, "--warmup-steps", o.warmup_steps,
                "at most --max-steps = " + std::to_string(o.max_steps));
    check_outer_steps(o);
    const bool changes = sizes_of_steps(o, 1).size() > 1;
    require(!changes || !o.pad_last, "--pad-last", "set with --batch-schedule",
            "steps of one size, to which the last step of an epoch is filled up", "use -d, or remove --pad-last");
    require(!changes || !o.overfit_batch, "--overfit-batch", "set with --batch-schedule",
            "steps of one size: all repeat the first one's batch", "use -d");
    require(o.micro_batch > 0 || o.total_batch_tokens > 0 || !o.batch_schedule.empty(), "--micro-batch",
            "auto without --total-batch-tokens",
            "the tokens of a step, of which the micro-batch is a part", "set -d, or a number for -b");
    const Options defaults;  // are accepted without data, because a file with all options contains them
    if (line.given.contains("val-every") && o.val_every > 0 && o.val_every != defaults.val_every)
        require(!o.val_data.empty(), "--val-data", "missing", "validation shards, because --val-every is set",
                "set -j, or remove --val-every");
    for (const auto& [flag, is_set] : {std::pair("--keep-best", o.keep_best), {"--stop-after", o.stop_after > 0}})
        require(!is_set || (!o.val_data.empty() && o.val_every > 0), flag, "set without validations",
                "--val-data, and --val-every above 0", "set them, or remove it");
    require(!o.keep_best || o.keep_checkpoints > 0, "--keep-best", "set with --keep-checkpoints 0, which keeps all",
            "--keep-checkpoints above 0", "add --keep-checkpoints 1, or remove it");
    require(!o.keep_best || !o.output_dir.empty() || o.dry_run || o.eval_only, "--keep-best",
            "set without --output-dir", "the folder that checkpoints are saved in", "set -o, or remove it");
    if (line.given.contains("hellaswag-every") && o.hellaswag_every != defaults.hellaswag_every)
        require(!o.hellaswag.empty(), "--hellaswag", "missing", "a file of examples, because --hellaswag-every is set");
    require(!o.tf32 || device::is_gpu(), "--tf32", "set on a CPU", "a GPU with TF32 tensor cores",
            "remove it");
    require(!o.eval_only || o.max_minutes == 0, "--max-minutes", o.max_minutes, "0 with --eval-only",
            "remove it: an evaluation is made whole; --val-tokens makes it shorter");
    require(!(o.eval_only && o.val_data.empty() && o.hellaswag.empty()), "--val-data", "missing",
            "validation shards, or examples with --hellaswag, because --eval-only is set");
    const bool in_a_run = !o.output_dir.empty() && is_present(std::filesystem::path(o.output_dir) / kOptionsName);
    require(o.eval_only || !o.train_data.empty() || (o.plans_elsewhere() && !in_a_run), "--train-data", "missing",
            "training shards, for example -i 'data/bible/bible_train_*.bin'",
            in_a_run && !line.resumes() ? "-y auto resumes the run in " + o.output_dir
                                        : "make shards with dev/tokenize, or see --help");
}

}  // namespace llmc
