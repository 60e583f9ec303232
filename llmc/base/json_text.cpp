// json_text.cpp - calls nlohmann::json's writer and parser, and its functions for a JsonValue
#include "llmc/base/json_text.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>
#include <vector>

#include "kernels/base/error.h"

namespace llmc {
namespace {

constexpr auto kReplaced = nlohmann::json::error_handler_t::replace;

// The code unit of "\uXXXX" at the start of `text`; -1: there is none.
int escaped_unit(std::string_view text) {
    int unit = 0;
    if (text.size() < 6 || !text.starts_with("\\u")) return -1;
    const auto [end, error] = std::from_chars(text.data() + 2, text.data() + 6, unit, 16);
    return error == std::errc{} && end == text.data() + 6 ? unit : -1;
}

// JSON allows numbers of any size; nlohmann's parser refuses those beyond double. They become this one.
constexpr double kHuge = 1e308;

// `text` with replacements, outside of strings, for numbers that are too large and for NaN (or "": it is not replaced).
// They are padded with blanks to the length of what they replace, so that columns stay.
std::string replace_numbers(std::string_view text, std::string_view for_nan) {
    std::string result;
    for (bool quoted = false; !text.empty();) {
        std::size_t length = std::min<std::size_t>(quoted && text.front() == '\\' ? 2 : 1, text.size());
        quoted ^= text.front() == '"';
        std::string_view replacement;
        if (double value; !quoted && text.front() >= '0' && text.front() <= '9') {
            const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
            length = std::size_t(end - text.data());
            if (error == std::errc::result_out_of_range) replacement = "1e308";
        }
        for (const std::string_view nan : {"NaN", "Infinity", "-Infinity"})
            if (!quoted && !for_nan.empty() && text.starts_with(nan)) replacement = for_nan, length = nan.size();
        if (replacement.empty()) replacement = text.substr(0, length);
        result.append(length - std::min(length, replacement.size()), ' ') += replacement;
        text.remove_prefix(length);
    }
    return result;
}

std::string replace_lone_surrogates(std::string_view text, std::int64_t& replaced) {
    std::string result;
    while (!text.empty()) {
        std::size_t length = std::min(text.find('\\'), text.size());
        result += text.substr(0, length);
        text.remove_prefix(length);
        const int unit = escaped_unit(text);
        const bool high = unit >= 0xd800 && unit < 0xdc00, low = unit >= 0xdc00 && unit < 0xe000;
        const int next = high ? escaped_unit(text.substr(6)) : -1;
        const bool pair = next >= 0xdc00 && next < 0xe000, lone = (high && !pair) || low;
        length = std::min<std::size_t>(pair ? 12 : unit >= 0 ? 6 : 2, text.size());
        result += lone ? "\\ufffd" : text.substr(0, length);
        replaced += lone;
        text.remove_prefix(length);
    }
    return result;
}

}  // namespace

std::string text_of(const nlohmann::json& value, int indent) { return value.dump(indent, ' ', false, kReplaced); }
std::string text_of(const nlohmann::ordered_json& value, int indent) {
    return value.dump(indent, ' ', false, kReplaced);
}

nlohmann::ordered_json number_or_null(const std::optional<double>& number) {
    return number ? nlohmann::ordered_json(*number) : nlohmann::ordered_json();
}

std::string excerpt(const nlohmann::json& value) {
    if (value.is_number_float() && std::abs(value.get<double>()) == kHuge) return "a number of 1e308 or more";
    std::string text = value.dump(-1, ' ', true, kReplaced);
    if (text.size() > 80) text = text.substr(0, 77) + "...";
    return text;
}

nlohmann::json parse_json(std::string_view text) {
    // nlohmann's parser takes a NUL for the end of the text.
    if (text.find('\0') != text.npos) return nlohmann::json(nlohmann::json::value_t::discarded);
    bool too_deep = false;
    const auto watch = [&](int depth, nlohmann::json::parse_event_t, const nlohmann::json&) {
        too_deep = too_deep || depth > kMostJsonLevels;
        return !too_deep;
    };
    auto value = nlohmann::json::parse(text, watch, false);
    if (value.is_discarded() && !too_deep) value = nlohmann::json::parse(replace_numbers(text, ""), watch, false);
    return too_deep ? nlohmann::json(nlohmann::json::value_t::discarded) : value;
}

nlohmann::json parse_json_line(std::string_view line, std::int64_t& lone_surrogates, std::string& why) {
    nlohmann::json value = parse_json(line);
    if (!value.is_discarded()) return value;
    const std::string paired = replace_lone_surrogates(line, lone_surrogates);
    value = parse_json(replace_numbers(paired, "null"));
    if (!value.is_discarded()) return value;
    std::size_t column = line.find('\0') + 1;
    why = column > 0 ? "a NUL" : "more than " + std::to_string(kMostJsonLevels) + " levels deep";
    try {
        const auto shallow = [](int depth, auto, const auto&) { return depth <= kMostJsonLevels; };
        if (column == 0) std::ignore = nlohmann::json::parse(replace_numbers(paired, "{}"), shallow);
    } catch (const nlohmann::json::parse_error& error) {
        // "[json.exception.parse_error.101] parse error at line 1, column 9: syntax error while parsing value - invalid
        // literal; last read: 'x'"
        const std::string all = error.what();
        why = all.substr(all.find(" - ") + 3);
        why = why.substr(0, why.find("; last read: "));
        column = error.byte;
    }
    if (column > 0) why += " (column " + std::to_string(column) + ')';
    return value;
}

nlohmann::json parse_json_object(const std::string& what, std::string_view text, std::string_view hint,
                                 Comments comments) {
    const std::size_t nul = text.find('\0');
    if (nul != text.npos) fail(what, "invalid at byte " + std::to_string(nul + 1), "JSON", hint);
    std::vector<std::set<std::string>> keys;
    const auto watch = [&](int depth, nlohmann::json::parse_event_t event, nlohmann::json& parsed) {
        using Event = nlohmann::json::parse_event_t;
        if (depth > kMostJsonLevels)
            fail(what, "more than " + std::to_string(kMostJsonLevels) + " levels deep", "a shallow JSON object", hint);
        if (event == Event::object_start) keys.emplace_back();
        if (event == Event::object_end) keys.pop_back();
        if (event == Event::key && !keys.back().insert(parsed.get<std::string>()).second)
            fail(what + "'s key", excerpt(parsed), "each key once", hint);
        return true;
    };
    try {
        auto object = nlohmann::json::parse(text.begin(), text.end(), watch, true, comments == Comments::allowed);
        if (!object.is_object()) fail(what, excerpt(object), "a JSON object", hint);
        return object;
    } catch (const nlohmann::json::exception& error) {
        const auto* syntax = dynamic_cast<const nlohmann::json::parse_error*>(&error);
        std::string found = "invalid";
        if (syntax) {
            const std::string_view before = text.substr(0, syntax->byte);
            found += " at byte " + std::to_string(syntax->byte);
            if (text.substr(0, text.find_last_not_of(" \n") + 1).find('\n') != text.npos)
                found += ", in line " + std::to_string(1 + std::ranges::count(before, '\n'));
        } else {  // "[json.exception.out_of_range.406] number overflow parsing '1e400'"
            const std::string why = error.what();
            found += " (" + why.substr(why.find(' ') + 1) + ')';
        }
        fail(what, found, "JSON", hint);
    }
}

JsonValue::JsonValue() : JsonValue(nlohmann::json()) {}
JsonValue::JsonValue(const nlohmann::json& value) : value_(std::make_shared<const nlohmann::json>(value)) {}

bool operator==(const JsonValue& a, const JsonValue& b) { return *a == *b; }

void to_json(nlohmann::json& json, const JsonValue& value) { json = *value; }
void from_json(const nlohmann::json& json, JsonValue& value) { value = JsonValue(json); }

}  // namespace llmc
