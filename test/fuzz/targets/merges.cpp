// merges.cpp - BPE merges in all formats
#include "llmc/text/bpe_merges.h"

#include <set>

#include "test/fuzz/target.h"

namespace {

const fuzz::Target merges("merges", [](std::string_view bytes) {
    const llmc::BpeMerges read = llmc::read_merges(fuzz::file_with("merges", bytes));
    const std::vector<std::string> tokens = read.tokens();
    fuzz::must(tokens.size() == 256 + read.merges.size() && read.vocabulary().end_of_text == int(tokens.size()),
               "a token for each byte and merge");
    fuzz::must(std::set<std::string>(tokens.begin(), tokens.end()).size() == tokens.size(), "tokens that differ");
    std::string lines = "#version: 0.2\n";
    for (const llmc::BpeMerge& merge : read.merges)
        lines += llmc::byte_symbols(tokens[merge.left]) + " " + llmc::byte_symbols(tokens[merge.right]) + "\n";
    fuzz::must(llmc::parse_merges("again", lines).merges == read.merges, "the same merges written as lines");
});

}  // namespace
