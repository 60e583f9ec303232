// llmc_flags.cpp - the tables; scripts/COMING_FROM.md compares all flags of llm.c and nanoGPT with ours
#include "llmc/run/options/llmc_flags.h"

#include <algorithm>
#include <array>

#include "kernels/base/error.h"

namespace llmc {
namespace {

struct LlmcFlag {
    std::string_view name;
    std::string_view ours;     // "": none
    std::string_view because;  // why there is none, or how ours differs
};

constexpr std::string_view kByMpi = "mpirun sets it: scripts/run_one_node.sh, scripts/run_two_nodes.sh";

constexpr std::array<LlmcFlag, 17> kLlmcFlags{{
    {"-lg", "--log-gpu", ""},
    {"-nk", "--keep-checkpoints", ""},
    {"-nm", "--major-every", ""},
    {"-sl", "--skip-loss-z", ""},
    {"-sg", "--skip-norm-z", ""},
    {"-m", "--val-tokens", "it counts tokens, not batches"},
    {"-h", "--hellaswag", "it takes the name of the file; -h alone prints the help"},
    {"-w", "", "fp32 master weights are always kept"},
    {"-ge", "", "autotuning decides whether GELU is fused into a matrix product"},
    {"-pn", "", kByMpi},
    {"-pr", "", kByMpi},
    {"-pg", "", kByMpi},
    {"-pm", "--comm", ""},
    {"-pi", "--comm", ""},
    {"-ps", "", kByMpi},
    {"-pf", "", kByMpi},
    {"-pp", "", kByMpi},
}};

const LlmcFlag* llmc_flag(std::string_view word) {
    const auto* const place = std::ranges::find(kLlmcFlags, word, &LlmcFlag::name);
    return place == kLlmcFlags.end() ? nullptr : place;
}

struct ForeignValue { std::string_view flag, theirs, ours, program = "llm.c"; };

constexpr std::array<ForeignValue, 8> kForeignValues{{{"--resume", "0", "never"},
                                                      {"--resume", "1", "auto"},
                                                      {"--max-steps", "-1", "0"},
                                                      {"--recompute", "0", "none"},
                                                      {"--recompute", "1", "gelu"},
                                                      {"--recompute", "2", "gelu+layernorm"},
                                                      {"--dtype", "bfloat16", "bf16", "nanoGPT"},
                                                      {"--dtype", "float32", "fp32", "nanoGPT"}}};
constexpr std::string_view kLlmcDescriptor = "gpt2:";  // precedes names such as d12

// Options of nanoGPT's train.py, written as --name=value, and their equivalents here.
constexpr std::array<std::pair<std::string_view, std::string_view>, 22> kNanoGptFlags{{
    {"--out_dir", "--output-dir"},
    {"--eval_interval", "--val-every"},
    {"--log_interval", "--log-every"},
    {"--eval_iters", "--val-tokens, in tokens"},
    {"--eval_only", "--eval-only"},
    {"--init_from", "--init, or --resume auto"},
    {"--wandb_log", "dev/export_runs.py, after the run"},
    {"--dataset", "--train-data and --val-data"},
    {"--gradient_accumulation_steps", "--total-batch-tokens, in tokens"},
    {"--batch_size", "--micro-batch"},
    {"--block_size", "--seq-len"},
    {"--n_layer", "--init custom:l=12,h=12,c=768"},
    {"--n_head", "--init custom:l=12,h=12,c=768"},
    {"--n_embd", "--init custom:l=12,h=12,c=768"},
    {"--learning_rate", "--lr"},
    {"--max_iters", "--max-steps"},
    {"--weight_decay", "--weight-decay"},
    {"--grad_clip", "--grad-clip"},
    {"--decay_lr", "--lr-schedule"},
    {"--warmup_iters", "--warmup-steps"},
    {"--lr_decay_iters", "--max-steps: the decay ends with the run"},
    {"--min_lr", "--final-lr-fraction, of the peak"},
}};

}  // namespace

bool is_llmc_flag(std::string_view word, std::string_view next) {
    return llmc_flag(word) != nullptr && (word != "-h" || next == "0" || next == "1");
}

void refuse_llmc_flag(std::string_view word, const std::vector<std::string>& flags) {
    const LlmcFlag& theirs = *llmc_flag(word);
    const bool have = std::ranges::find(flags, theirs.ours) != flags.end();
    fail(word, "a flag of llm.c", have ? std::string(theirs.ours) : "no such flag here", theirs.because);
}

void refuse_llmc_value(std::string_view flag, std::string_view value) {
    const auto refuse = [&](std::string_view ours, std::string_view program) {
        fail(flag, in_quotes(value) + ", a value of " + std::string(program), in_quotes(ours),
             "the same setting has that name here");
    };
    for (const auto& [name, theirs, ours, program] : kForeignValues)
        if (flag == name && value == theirs) refuse(ours, program);
    if (flag == "--init" && value.starts_with(kLlmcDescriptor)) refuse(value.substr(kLlmcDescriptor.size()), "llm.c");
}

void refuse_nanogpt_flag(std::string_view word) {
    const std::string name(word.substr(0, word.find('=')));
    std::string theirs = name;  // as in other programs, with dashes
    if (name.size() > 2) std::replace(theirs.begin() + 2, theirs.end(), '-', '_');
    const auto* const place = std::ranges::find(kNanoGptFlags, theirs, [](const auto& flag) { return flag.first; });
    if (place != kNanoGptFlags.end())
        fail(name, "an option of nanoGPT's train.py", place->second, "scripts/COMING_FROM.md lists them all");
}

}  // namespace llmc
