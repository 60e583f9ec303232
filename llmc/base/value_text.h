// value_text.h - the text of a number or switch on the command line: one parser and one spelling for all programs
#pragma once
#include <algorithm>
#include <cctype>
#include <charconv>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

#include "kernels/base/error.h"

namespace llmc {

// The shortest decimal text that parses to the same number.
template <class Number>
std::string text_of_number(Number value) {
    char text[64];
    return {text, std::to_chars(text, text + sizeof text, value).ptr};
}
// "1 minute", "2.5 minutes"
inline std::string minutes_text(double minutes) {
    return text_of_number(minutes) + (minutes == 1 ? " minute" : " minutes");
}

// Throws Error that names the flag if the whole text is not a number in this range.
template <class Number>
Number parse_number(std::string_view flag, std::string_view text, Number least, Number most) {
    Number value{};
    const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (status != std::errc{} || end != text.data() + text.size() || !(value >= least && value <= most))
        fail(flag, in_quotes(text),
             (std::is_integral_v<Number> ? "a whole number from " : "a number from ") + text_of_number(least) + " to " +
                 text_of_number(most));
    return value;
}

// on, true, yes or 1; off, false, no or 0, in upper or lower case. nullopt: anything else.
inline std::optional<bool> switch_value(std::string_view text) {
    constexpr std::string_view kOn[] = {"on", "true", "yes", "1"}, kOff[] = {"off", "false", "no", "0"};
    std::string lower(text);
    std::ranges::transform(lower, lower.begin(), [](unsigned char c) { return char(std::tolower(c)); });
    if (std::ranges::find(kOn, lower) != std::end(kOn)) return true;
    return std::ranges::find(kOff, lower) != std::end(kOff) ? std::optional(false) : std::nullopt;
}

// "--shuffle=true", from a switch and its value, as cxxopts reads it. Throws Error for any other value.
inline std::string switch_with_value(const std::string& flag, std::string_view text) {
    const auto value = switch_value(text);
    require(value.has_value(), flag, in_quotes(text), "on, off, true, false, yes, no, 1 or 0, or the flag alone");
    return flag + (*value ? "=true" : "=false");
}

}  // namespace llmc
