// json_text.h - JSON to text and back, so that nlohmann's templates for both are compiled once; and a JSON value as a
// member of a class, whose header then need not include the JSON library, which is slow to compile
#pragma once
#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace llmc {

// On one line, or with `indent` spaces per level. Invalid UTF-8 is replaced by U+FFFD.
std::string text_of(const nlohmann::json& value, int indent = -1);
std::string text_of(const nlohmann::ordered_json& value, int indent = -1);

// Empty: null.
nlohmann::ordered_json number_or_null(const std::optional<double>& number);

// JSON shortened for a one-line message: at most 80 characters of ASCII.
std::string excerpt(const nlohmann::json& value);

// The deepest nesting that is parsed: copying or comparing deeper JSON recurses until the stack overflows.
inline constexpr int kMostJsonLevels = 100;

// For invalid or too deeply nested JSON the result is_discarded(). A number beyond the range of double becomes +-1e308.
nlohmann::json parse_json(std::string_view text);

// The same for a line of JSON as other programs write them: U+FFFD replaces every escaped surrogate (\ud800 to \udfff)
// that is not half of a pair, their number is added to `lone_surrogates`, and NaN, Infinity and -Infinity become null.
// If the result is_discarded(), `why` says why: "unexpected '{'; expected end of input (column 14)", in bytes.
nlohmann::json parse_json_line(std::string_view line, std::int64_t& lone_surrogates, std::string& why);

enum class Comments { refused, allowed };  // from // to the end of a line

// A JSON object without duplicate keys, which parse_json() accepts. Throws Error otherwise: "WHAT is invalid at byte 7;
// expected JSON; HINT"; "at byte 57, in line 3" if the text has lines.
nlohmann::json parse_json_object(const std::string& what, std::string_view text, std::string_view hint,
                                 Comments comments = Comments::refused);

// Immutable; copies share it.
class JsonValue {
public:
    JsonValue();  // null
    explicit JsonValue(const nlohmann::json& value);

    const nlohmann::json& operator*() const { return *value_; }
    const nlohmann::json* operator->() const { return value_.get(); }
    friend bool operator==(const JsonValue& a, const JsonValue& b);

private:
    std::shared_ptr<const nlohmann::json> value_;
};
void to_json(nlohmann::json& json, const JsonValue& value);
void from_json(const nlohmann::json& json, JsonValue& value);

}  // namespace llmc
