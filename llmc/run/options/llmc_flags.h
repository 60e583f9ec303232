// llmc_flags.h - flags of llm.c's train_gpt2 that have another name here, or none, and its values that are names here;
// nanoGPT's names
//
// llm.c's other letters mean the same here.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace llmc {

// Whether a command line has it for llm.c: no flag of this program reads it as it is meant. `next`: the word behind it,
// by which -h asks for llm.c's evaluation and not for help.
bool is_llmc_flag(std::string_view word, std::string_view next);
// Throws Error that says what such a flag is called here, if it is among `flags` ("--lr", ...).
[[noreturn]] void refuse_llmc_flag(std::string_view word, const std::vector<std::string>& flags);

// Throws Error where llm.c's number was given for what has a name here, "-r 0", "-y 1", or another program's name.
void refuse_llmc_value(std::string_view flag, std::string_view value);
// Throws Error for a name of nanoGPT's, "--batch_size=12".
void refuse_nanogpt_flag(std::string_view word);

}  // namespace llmc
