// llmc_flags.cpp - the tables; scripts/COMING_FROM.md has all of llm.c's flags beside ours
#include "llmc/run/llmc_flags.h"

#include <algorithm>
#include <array>

#include "kernels/device/error.h"

namespace llmc {
namespace {

struct LlmcFlag {
    std::string_view name;
    std::string_view ours;     // "": none
    std::string_view because;  // of one without, why; of others how they differ
};

constexpr std::string_view kByMpi = "mpirun says it: scripts/run_one_node.sh, scripts/run_two_nodes.sh";

constexpr std::array<LlmcFlag, 17> kLlmcFlags{{
    {"-lg", "--log-gpu", ""},
    {"-nk", "--keep-checkpoints", ""},
    {"-nm", "--major-every", ""},
    {"-sl", "--skip-loss-z", ""},
    {"-sg", "--skip-norm-z", ""},
    {"-m", "--val-tokens", "in tokens, not in batches"},
    {"-h", "--hellaswag", "it names the file; -h alone shows the help"},
    {"-w", "", "fp32 master weights are always kept"},
    {"-ge", "", "GELU is part of the products wherever the library can"},
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

struct LlmcValue { std::string_view flag, theirs, ours; };

constexpr std::array<LlmcValue, 6> kLlmcValues{{{"--resume", "0", "never"},
                                                {"--resume", "1", "auto"},
                                                {"--max-steps", "-1", "0"},
                                                {"--recompute", "0", "none"},
                                                {"--recompute", "1", "gelu"},
                                                {"--recompute", "2", "gelu+layernorm"}}};

}  // namespace

bool is_llmc_flag(std::string_view word, std::string_view next) {
    return llmc_flag(word) != nullptr && (word != "-h" || next == "0" || next == "1");
}

void refuse_llmc_flag(std::string_view word, const std::vector<std::string>& flags) {
    const LlmcFlag& theirs = *llmc_flag(word);
    const bool have = std::ranges::find(flags, theirs.ours) != flags.end();
    fail(word, "a flag of llm.c", have ? std::string(theirs.ours) : "to be left out", theirs.because);
}

void refuse_llmc_value(std::string_view flag, std::string_view value) {
    for (const auto& [name, theirs, ours] : kLlmcValues)
        if (flag == name && value == theirs)
            fail(flag, in_quotes(value) + ", as llm.c has it", ours, "that is the same here");
}

}  // namespace llmc
