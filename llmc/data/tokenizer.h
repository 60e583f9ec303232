// tokenizer.h - text to token ids and back
//
// Byte tokenizer   ids 0 to 255 are the bytes of the text, 256 is the end of text: no table, no loss, any language.
#pragma once
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
    // The ids of `text` alone: what looks like an end of text in it is ordinary text. Throws Error where no table of
    // the vocabulary is at hand.
    virtual std::vector<int> encode(std::string_view text) const = 0;
    // Throws Error for an id outside the vocabulary.
    virtual std::string decode(std::span<const int> ids) const = 0;
};

// 257 / 256 gives the byte tokenizer: decode(encode(text)) == text for every text; an end of text reads
// "\n<|endoftext|>\n"; bytes come out as they are, so what a model made up need not be valid UTF-8 (see printable). For
// every other vocabulary decode lists the ids, separated by spaces, and encode refuses.
std::unique_ptr<Tokenizer> tokenizer_for(Vocabulary vocabulary);

// `text` fit for a terminal and for JSON: valid UTF-8 passes; bytes that are none, and control characters but \n and
// \t, become \x1b and the like.
std::string printable(std::string_view text);

}  // namespace llmc
