// llmc_flags.h - options and values of llm.c, nanoGPT, Hugging Face's Trainer, torchtitan and others that have another
// name here, or no equivalent. The other one-letter flags of llm.c mean the same here
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace llmc {

struct ForeignOption {
    std::string ours;    // "--micro-batch", "--dtype bf16", or what else does it; empty: this program has none
    std::string remark;  // how ours differs, or why there is none; may be empty if there is one

    // Throws Error. `what`: the option as the user wrote it, such as "the flag \"--batch_size\"".
    [[noreturn]] void refuse(const std::string& what) const;
};

// What this program has for an option of another program: nullopt if the name is not known. `name`: with or without
// dashes, with hyphens or underscores, and perhaps with a section or a value: "batch_size", "--batch-size=8", "-lr",
// "training.local_batch_size". `flags`: those of this program ("--lr", ...). A name that differs from one of them only
// in spelling is known, too: "weight_decay", "no-shuffle".
std::optional<ForeignOption> foreign_option(std::string_view name, const std::vector<std::string>& flags);
// Throws Error if the word is a flag that foreign_option() knows, "--batch_size=12". `word` is no flag of ours.
void refuse_foreign_flag(const std::string& word, const std::vector<std::string>& flags);
// Throws Error that starts with `what` for another program's value of our flag `flag`: "-r 0", "--dtype bfloat16".
void refuse_foreign_value(std::string_view flag, std::string_view what, std::string_view value);

}  // namespace llmc
