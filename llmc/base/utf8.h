// utf8.h - UTF-8 characters in bytes that may contain invalid UTF-8
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace llmc {

// The number of bytes of the first character of `text`, which is not empty; 0 if it does not start with a valid one.
// Overlong forms, surrogates and code points above U+10FFFF are invalid.
std::size_t character_length(std::string_view text);

// The code point of one valid character.
std::uint32_t code_point(std::string_view character);

// The number of bytes at the start of `text` that are valid characters, and that are invalid.
std::size_t valid_length(std::string_view text);
std::size_t invalid_length(std::string_view text);

// Counts line ends and what is not UTF-8 in a text that arrives in chunks.
struct TextCheck {
    std::int64_t bytes = 0, line_ends = 0, crlf = 0, invalid = 0;  // line ends that are CR LF; bytes that are not UTF-8
    std::int64_t first_line = 0, first_byte = 0;  // the place of the first of these bytes, from 1

    void append(std::string_view text, bool last = false);

private:
    std::string cut_;  // the end of the previous chunk: a CR, or perhaps the start of a character
};

// Unicode's White_Space.
bool is_white_space(std::uint32_t code);
// Whether `text` ends with a complete white space character.
bool ends_with_white_space(std::string_view text);

}  // namespace llmc
