// bpe_merges.h - the merges of a byte-level BPE, read from the files in which they are published
//
// Ids          0 to 255 are single bytes in GPT-2's order (id_of_byte), 256 + i is the result of merge i, and the last
//              one, 256 + merges, is the end of text. Merges of lower index are applied first.
// Byte symbols GPT-2's files write each byte as a visible character: the byte itself if it is a visible Latin-1
//              character, else one from U+0100 on, in byte order. A space is U+0120.
//
// Files, identified by their content:
//
//   merges.txt, vocab.bpe    optionally "#version: 0.2", then one line per merge with two symbols, "h e"
//   tokenizer.json           Hugging Face's: model.merges, and model.vocab, which must have the ids above
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

    Vocabulary vocabulary() const;
    // The bytes of every id except the end of text.
    std::vector<std::string> tokens() const;
    // XXH3 of the merges in their order.
    std::string fingerprint() const;
    bool is_gpt2() const;
};

// The id of each byte, 0 to 255.
const std::array<std::uint8_t, 256>& id_of_byte();
// Bytes as GPT-2's files write them, in UTF-8.
std::string byte_symbols(std::string_view bytes);

// Throws Error that names file, line or key, and what was expected, if the file is missing or has no valid merges in
// one of the formats above: each part of a merge is a byte or the result of an earlier merge, no two merges give the
// same token, and there are at most 65279 merges.
BpeMerges read_merges(const std::filesystem::path& file);
// `file` names it in messages.
BpeMerges parse_merges(const std::string& file, std::string_view text);

// Like read_merges(), but also throws Error if the merges are not those that OpenAI published for GPT-2.
BpeMerges read_gpt2_merges(const std::filesystem::path& file);

// The merges file that scripts/get_gpt2_tokenizer.sh writes: data/gpt2/vocab.bpe below the current folder, else below
// the source folder that this program was built in. Empty if neither exists.
std::filesystem::path find_gpt2_merges();

}  // namespace llmc
