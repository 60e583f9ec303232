// utf8.h - characters of UTF-8 in bytes that may hold others
#pragma once
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace llmc {

// Bytes of the character that `text`, which is not empty, begins with; 0 where it begins with none. Overlong forms,
// surrogates and what lies past U+10FFFF are none.
std::size_t character_length(std::string_view text);

// The code point of one valid character.
std::uint32_t code_point(std::string_view character);

// Bytes at the start of `text` that are valid characters; that are none.
std::size_t valid_length(std::string_view text);
std::size_t invalid_length(std::string_view text);

// Unicode's White_Space.
bool is_white_space(std::uint32_t code);
// Whether `text` ends with a whole character of white space.
bool ends_with_white_space(std::string_view text);

}  // namespace llmc
