// tokenizer.h - text to token ids and back
//
// Bytes   ids 0 to 255 are the bytes of the text, 256 is the end of text: no table, no loss, any language.
// GPT-2   its byte-level BPE (bpe_tokenizer.h), where its merges are at hand.
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "llmc/data/shard.h"

namespace llmc {

inline constexpr Vocabulary kByteVocabulary = {.size = 257, .end_of_text = 256};

class Tokenizer {
public:
    virtual ~Tokenizer() = default;
    virtual Vocabulary vocabulary() const = 0;
    // Whether ids are text: else append() refuses, and decode() lists them.
    virtual bool has_table() const { return true; }
    // Appends the ids of `text` alone: what looks like an end of text in it is ordinary text. Throws Error where no
    // table of the vocabulary is at hand. Several threads may call it at once.
    virtual void append(std::string_view text, std::vector<std::uint16_t>& ids) const = 0;
    std::vector<int> encode(std::string_view text) const;
    // The length of a prefix of `text` after which it can be cut: its ids, and those of the rest, are the same whatever
    // follows, and together those of the whole. 0 where none is found; the more text, the likelier there is one.
    virtual std::size_t certain_prefix(std::string_view text) const = 0;
    // Of each id, how many bytes of text it stands for: an end of text none. Empty without a table.
    virtual std::vector<std::uint16_t> token_bytes() const = 0;
    // Throws Error for an id outside the vocabulary.
    virtual std::string decode(std::span<const int> ids) const = 0;
};

// What an end of text reads.
inline constexpr std::string_view kEndOfTextLine = "\n<|endoftext|>\n";

// 257 / 256 gives the tokenizer of bytes, and GPT-2's 50257 / 50256 its own where `gpt2_merges` names a file of them
// (bpe_merges.h; read_gpt2_merges() says what it throws): decode(encode(text)) == text for every text; an end of text
// reads kEndOfTextLine; bytes come out as they are, so what a model made up need not be valid UTF-8 (see printable).
// For every other vocabulary decode lists the ids, separated by spaces, and encode refuses.
std::unique_ptr<Tokenizer> tokenizer_for(Vocabulary vocabulary, const std::filesystem::path& gpt2_merges);
// With the merges that are at hand (gpt2_merges_at_hand()).
std::unique_ptr<Tokenizer> tokenizer_for(Vocabulary vocabulary);

// `text` fit for a terminal and for JSON: valid UTF-8 passes; bytes that are none, and control characters but \n and
// \t, become \x1b and the like.
std::string printable(std::string_view text);

}  // namespace llmc
