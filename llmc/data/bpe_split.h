// bpe_split.h - GPT-2's pieces of a text, within which its BPE merges and across which it does not
//
// Pattern   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
//           with \s as Unicode's White_Space; letters and numbers are those of the Unicode version of PCRE2
// Bytes that are no UTF-8 are kept: a run of them is a piece of its own, and what stands before and after is split as
// if it was a text of its own.
//
// Source    openai/gpt-2, encoder.py
#pragma once
#include <cstddef>
#include <memory>
#include <string_view>
#include <vector>

#include "llmc/data/utf8.h"

namespace llmc {

// The pattern, compiled once for the process. Several threads may use it, each with a matcher of its own.
class BpeMatcher {
public:
    // Throws a run-time Error where PCRE2 refuses.
    BpeMatcher();
    ~BpeMatcher();
    BpeMatcher(BpeMatcher&& other) noexcept;

    // Calls piece(std::string_view) for the pieces of `text`, in order; together they are the text.
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
    // The ends of the pieces that begin at byte `at` of valid UTF-8, one at least.
    const std::vector<std::size_t>& match(std::string_view characters, std::size_t at);

    struct Data;
    std::unique_ptr<Data> data_;
    std::vector<std::size_t> ends_;
};

// The length of a prefix of `text` whose pieces are the same whatever follows `text`, the longest that is found fast:
// up to the last white space after something else. Where there is none, up to the last piece that is certain; 0 where
// none is.
std::size_t certain_pieces(std::string_view text);

}  // namespace llmc
