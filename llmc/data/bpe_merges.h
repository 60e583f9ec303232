// bpe_merges.h - the merges of a byte-level BPE, read from the files in which they are published
//
// Ids          0 to 255 are single bytes in GPT-2's order (byte_of_id), 256 + i is what merge i makes, and the last
//              one, 256 + merges, is the end of text. A merge of lower index comes first.
// Byte symbols GPT-2's files write a byte as a character that can be seen: itself where it is one of Latin-1, else
//              U+0100 and those after it, in the order of the bytes. A space is U+0120.
//
// Files, told apart by their content:
//
//   merges.txt, vocab.bpe    "#version: 0.2" or not, then a line of two symbols, "h e", for every merge
//   tokenizer.json           of Hugging Face: model.merges, with model.vocab, which must have the ids above
//   rank file of tiktoken    base64 of a token and its rank on a line; the merges follow from the ranks
#pragma once
#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "llmc/data/shard.h"

namespace llmc {

inline constexpr Vocabulary kGpt2Vocabulary = {.size = 50257, .end_of_text = 50256};
inline constexpr std::string_view kEndOfTextSymbol = "<|endoftext|>";

struct BpeMerge {
    std::uint16_t left = 0, right = 0;
    bool operator==(const BpeMerge&) const = default;
};

struct BpeMerges {
    std::vector<BpeMerge> merges;

    Vocabulary vocabulary() const { return {int(256 + merges.size() + 1), int(256 + merges.size())}; }
    // The bytes of every id but that of the end of text.
    std::vector<std::string> tokens() const;
    // XXH3 of the merges in their order.
    std::string fingerprint() const;
    bool is_gpt2() const;
};

// Of the ids 0 to 255 the byte, and of bytes the id.
const std::array<std::uint8_t, 256>& byte_of_id();
const std::array<std::uint8_t, 256>& id_of_byte();
// Bytes as GPT-2's files write them, in UTF-8.
std::string byte_symbols(std::string_view bytes);

// Throws Error that names file, line or key, and what was expected, where the file is missing or holds no merges in one
// of the formats above: each of the two parts of a merge is a byte or what an earlier one makes, no two make the same
// token, and there are at most 65279 of them.
BpeMerges read_merges(const std::filesystem::path& file);
// `file` names it in messages.
BpeMerges parse_merges(const std::string& file, std::string_view text);

// The same, and throws Error where the merges are not those that OpenAI published for GPT-2.
BpeMerges read_gpt2_merges(const std::filesystem::path& file);

// Where scripts/get_gpt2_tokenizer.sh puts them: data/gpt2/vocab.bpe below the current folder, else below that of the
// sources that this program was built in. Empty where they are in neither.
std::filesystem::path gpt2_merges_at_hand();

}  // namespace llmc
