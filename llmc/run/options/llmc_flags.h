// llmc_flags.h - flags and values of llm.c's train_gpt2 and of nanoGPT that have another name here, or none. All other
// one-letter flags of llm.c mean the same here
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace llmc {

// Whether this word is a flag of llm.c that means something else here, or nothing. `next`: the word after it: "-h 0"
// and "-h 1" are llm.c's HellaSwag evaluation, -h alone is help.
bool is_llmc_flag(std::string_view word, std::string_view next);
// Throws Error that gives the flag's name here, if it is among `flags` ("--lr", ...).
[[noreturn]] void refuse_llmc_flag(std::string_view word, const std::vector<std::string>& flags);

// Throws Error for a number of llm.c where this program has a name ("-r 0", "-y 1"), or for another program's name.
void refuse_llmc_value(std::string_view flag, std::string_view value);
// Throws Error for a flag of nanoGPT, "--batch_size=12" or "--batch-size".
void refuse_nanogpt_flag(std::string_view word);

}  // namespace llmc
