// bpe_split.h - splits a text into GPT-2's pieces; BPE merges only within a piece
//
// Pattern   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
//           with \s as Unicode's White_Space; letters and numbers are those of the Unicode version of PCRE2
// Invalid UTF-8 is preserved: a run of such bytes is a separate piece, and the text before and after it is split as
// separate texts.
//
// Source    openai/gpt-2, encoder.py
#pragma once
#include <cstddef>
#include <memory>
#include <string_view>
#include <vector>

#include "llmc/base/utf8.h"

namespace llmc {

// Matches the pattern, which is compiled once per process. Each thread needs its own matcher.
class BpeMatcher {
public:
    // Throws a run-time Error if PCRE2 fails.
    BpeMatcher();
    ~BpeMatcher();
    BpeMatcher(BpeMatcher&& other) noexcept;

    // Calls piece(std::string_view) for the pieces of `text`, in order; their concatenation is the text.
    template <class Piece> void split(std::string_view text, Piece&& piece) {
        while (!text.empty()) {
            const std::size_t valid = valid_length(text);
            const std::string_view characters = text.substr(0, valid);
            for (std::size_t at = 0; at < valid;) {
                const auto& ends = match(characters, at);
                for (const std::size_t end : ends) {
                    piece(characters.substr(at, end - at));
                    at = end;
                }
            }
            text.remove_prefix(valid);
            const std::size_t invalid = invalid_length(text);
            if (invalid > 0) piece(text.substr(0, invalid));
            text.remove_prefix(invalid);
        }
    }

private:
    // The ends of the next pieces, at least one, starting at byte `at` of valid UTF-8.
    const std::vector<std::size_t>& match(std::string_view characters, std::size_t at);

    struct Data;
    std::unique_ptr<Data> data_;
    std::vector<std::size_t> ends_;
};

// The length of a prefix of `text` whose pieces do not depend on what follows `text`: the longest that is quick to
// find, up to the last white space after another character. Without such white space, up to the last piece that is
// certain; 0 if no piece is.
std::size_t certain_pieces(std::string_view text);

}  // namespace llmc
