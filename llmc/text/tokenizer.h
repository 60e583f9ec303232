// tokenizer.h - converts text to token ids and back
//
// Bytes   ids 0 to 255 are the bytes of the text, 256 is the end of text: no table, lossless, any language.
// GPT-2   its byte-level BPE (bpe_tokenizer.h), if its merges are available.
// Others  a BPE that was trained on the text (bpe_training.h), if its files are beside the shards or the model
//         (tokenizer_files.h).
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
    // Whether ids can be converted to text: otherwise append() throws, and decode() lists the ids.
    virtual bool has_table() const { return true; }
    // Appends the ids of `text`, without an end of text: "<|endoftext|>" in it is ordinary text. Throws Error if the
    // vocabulary has no table. Thread-safe.
    virtual void append(std::string_view text, std::vector<std::uint16_t>& ids) const = 0;
    std::vector<int> encode(std::string_view text) const;
    // The length of a prefix after which `text` can be split: the prefix and the rest, encoded separately, give the ids
    // of the whole, whatever text follows. 0 if none is found; a longer text is more likely to have one.
    virtual std::size_t certain_prefix(std::string_view text) const = 0;
    // The number of bytes of text per id; 0 for the end of text. Empty without a table.
    std::vector<std::uint16_t> token_bytes() const;
    // Throws Error for an id outside the vocabulary.
    std::string decode(std::span<const int> ids) const;

private:
    virtual std::string text_of(int id) const = 0;  // with a table not called for the end of text
};

// The decoded end of text.
inline constexpr std::string_view kEndOfTextLine = "\n<|endoftext|>\n";

// 257 / 256 gives the byte tokenizer; 50257 / 50256 gives GPT-2's if `gpt2_merges` names a file of its merges
// (bpe_merges.h; throws as read_gpt2_merges()). For both decode(encode(text)) == text for every text, an end of text
// decodes to kEndOfTextLine, and bytes are not changed, so generated text may be invalid UTF-8 (see printable). For
// every other vocabulary decode lists the ids, separated by spaces, and encode throws.
std::unique_ptr<Tokenizer> tokenizer_for(Vocabulary vocabulary, const std::filesystem::path& gpt2_merges);
// With the merges file that find_gpt2_merges() finds.
std::unique_ptr<Tokenizer> tokenizer_for(Vocabulary vocabulary);

// `text` escaped for terminals and JSON: valid UTF-8 is unchanged; invalid bytes, and control characters except \n and
// \t, become \x1b etc.
std::string printable(std::string_view text);

// Printable text from bytes that arrive a few at a time. The concatenated output equals printable() of the whole text,
// and comes as early as possible: only the bytes of an incomplete UTF-8 character are held back.
class TextStream {
public:
    // The text that can be shown after `bytes` have arrived.
    std::string add(std::string_view bytes);
    // The rest: the bytes of an incomplete character as \xe2 etc. Afterwards a new text may start.
    std::string finish();

private:
    std::string held_;  // at most three bytes
};

}  // namespace llmc
