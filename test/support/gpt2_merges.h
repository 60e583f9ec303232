// gpt2_merges.h - GPT-2's merges for tests
#pragma once
#include <filesystem>

#include "llmc/text/bpe_merges.h"
#include "test/support/catch.h"

namespace test {

// Skips the test case without them.
inline std::filesystem::path gpt2_merges() {
    const std::filesystem::path file = llmc::find_gpt2_merges();
    if (file.empty()) skip("scripts/get_gpt2_tokenizer.sh has not put GPT-2's merges into data/gpt2");
    return file;
}

}  // namespace test
