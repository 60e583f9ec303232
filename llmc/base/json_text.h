// json_text.h - JSON to text and back: what the library makes of its templates for both is compiled once
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace llmc {

// On one line, or with `indent` spaces a level. What is no UTF-8 is replaced.
std::string text_of(const nlohmann::json& value, int indent = -1);
std::string text_of(const nlohmann::ordered_json& value, int indent = -1);

// JSON of any length as part of a one-line message: at most 80 characters of ASCII.
std::string excerpt(const nlohmann::json& value);

// Levels of JSON within JSON that are read: what copies or compares deeper ones recurses until its stack is full.
inline constexpr int kMostJsonLevels = 100;

// What is no JSON, or deeper than that, is_discarded().
nlohmann::json parse_json(std::string_view text);

// A JSON object in which no key stands twice, which parse_json() lets pass. Throws Error otherwise: "WHAT is invalid at
// byte 7; expected JSON; MEND".
nlohmann::json parse_json_object(const std::string& what, std::string_view text, std::string_view mend);

}  // namespace llmc
