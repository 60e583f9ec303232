// value_text.h - the text of a number or switch on the command line: one parser and one spelling for all programs
#pragma once
#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

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

// The number that is the whole text. nullopt: none, or outside the type.
template <class Number> std::optional<Number> number_of(std::string_view text) {
    Number value{};
    const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
    return status == std::errc{} && end == text.data() + text.size() ? std::optional(value) : std::nullopt;
}

// "7e9", "0.5M", "64k": a decimal number with an exponent or a factor: k, M, and B or G (10^3, 10^6, 10^9), in upper or
// lower case. nullopt: anything else, or not whole.
inline std::optional<std::int64_t> scaled_whole_number(std::string_view text) {
    constexpr std::string_view kFactors = "kmbg";
    constexpr std::size_t kDigits = 15;  // that a double has exactly
    constexpr double kMost = 1e15;
    std::string number(text);
    const auto factor = text.empty() ? text.npos : kFactors.find(char(std::tolower((unsigned char)(text.back()))));
    if (factor != text.npos) number.replace(number.size() - 1, 1, factor == 0 ? "e3" : factor == 1 ? "e6" : "e9");
    if (const auto plus = number.find("e+"); plus != number.npos) number.erase(plus + 1, 1);  // as JSON has it
    const std::optional<double> value = number_of<double>(number);
    if (!value || text.size() > kDigits + 1 || !(std::abs(*value) <= kMost) || std::trunc(*value) != *value) return {};
    return std::int64_t(*value);
}

// How whole numbers up to `most` can be written, for messages; "": as usual.
inline std::string_view forms_of_numbers(std::int64_t most) {
    return most < 1'000'000 ? "" : "64k (64000), 0.5M, 7e9 and 1B are whole numbers, too";
}

// Throws Error that names the flag if the whole text is not a number in this range. The kernels use fp32: a number that
// is not 0, but below its normal range, would be 0 there, or lose digits.
template <class Number> Number parse_number(std::string_view flag, std::string_view text, Number least, Number most) {
    std::optional<Number> value = number_of<Number>(text);
    std::string expected = "a number from " + text_of_number(least);
    std::string_view hint;
    if constexpr (std::is_integral_v<Number>) {
        expected = "a whole number from " + text_of_number(least);
        hint = forms_of_numbers(most);
        if (const auto scaled = scaled_whole_number(text); !value && scaled && std::in_range<Number>(*scaled))
            value = Number(*scaled);
    } else if (constexpr auto normal = std::numeric_limits<float>::min(); value && *value > 0 && *value < normal) {
        if (least == 0) expected = "0, or a number from " + text_of_number(normal);
        least = std::max(least, Number(normal));
    }
    if (!value || !(*value >= least && *value <= most))
        fail(flag, in_quotes(text), expected + " to " + text_of_number(most), hint);
    return *value;
}

// The same, or "auto", which is `automatic`.
template <class Number>
Number number_or_auto(std::string_view flag, std::string_view text, Number automatic, Number least, Number most) {
    if (text == "auto") return automatic;
    try {
        return parse_number(flag, text, least, most);
    } catch (const Error&) {
        constexpr bool whole = std::is_integral_v<Number>;
        fail(flag, in_quotes(text), "auto, or a " + std::string(whole ? "whole " : "") + "number from " +
                                        text_of_number(least) + " to " + text_of_number(most),
             whole ? forms_of_numbers(std::int64_t(most)) : "");
    }
}

// on, true, yes or 1; off, false, no or 0, in upper or lower case. nullopt: anything else.
inline std::optional<bool> switch_value(std::string_view text) {
    constexpr std::string_view kOn[] = {"on", "true", "yes", "1"}, kOff[] = {"off", "false", "no", "0"};
    std::string lower(text);
    std::ranges::transform(lower, lower.begin(), [](unsigned char c) { return char(std::tolower(c)); });
    if (std::ranges::find(kOn, lower) != std::end(kOn)) return true;
    return std::ranges::find(kOff, lower) != std::end(kOff) ? std::optional(false) : std::nullopt;
}

// "--shuffle=true", from a switch and its value, as cxxopts reads it; of one that may be left to the run also auto.
// Throws Error for any other value.
inline std::string switch_with_value(const std::string& flag, std::string_view text, bool has_auto = false) {
    if (has_auto && text == "auto") return flag + "=auto";
    const auto value = switch_value(text);
    require(value.has_value(), flag, in_quotes(text),
            std::string(has_auto ? "auto, " : "") + "on, off, true, false, yes, no, 1 or 0, or the flag alone");
    return flag + (*value ? "=true" : "=false");
}

}  // namespace llmc
