// json_text_test.cpp - invalid UTF-8 is replaced, excerpts are short, invalid JSON is discarded
#include "llmc/base/json_text.h"

#include <nlohmann/json.hpp>

#include "test/support/catch.h"

using namespace llmc;
using nlohmann::json;

TEST_CASE("JSON with any bytes is converted to text", "[json]") {
    const json value = {{"b", "a\xff" "b"}, {"a", 1}};
    CHECK(text_of(value) == "{\"a\":1,\"b\":\"a\xef\xbf\xbd" "b\"}");
    CHECK(text_of(json{{"a", {1}}}, 1) == "{\n \"a\": [\n  1\n ]\n}");
    CHECK(text_of(nlohmann::ordered_json{{"b", 1}, {"a", "\xff"}}) == "{\"b\":1,\"a\":\"\xef\xbf\xbd\"}");
    CHECK(parse_json(text_of(value))["a"] == 1);
}

TEST_CASE("an excerpt of JSON fits in a message", "[json]") {
    CHECK(excerpt({{"a", "\u00e9\xff"}}) == R"({"a":"\u00e9\ufffd"})");
    CHECK(excerpt(std::string(78, 'x')).size() == 80);
    const std::string cut = excerpt(std::string(79, 'x'));
    CHECK(cut.size() == 80);
    CHECK(cut.ends_with("x..."));
}

TEST_CASE("invalid JSON is discarded", "[json]") {
    for (const char* text : {"", "{", "{} x", "[1,]", "nul", "\"\xff\""}) {
        CAPTURE(text);
        CHECK(parse_json(text).is_discarded());
    }
    const std::string ends_early("{}\0{}", 5);  // after the NUL
    CHECK(parse_json(ends_early).is_discarded());
    CHECK_THROWS_WITH(parse_json_object("x", ends_early, ""), test::Contains("x is invalid at byte 3"));
    const auto nested = [](std::size_t levels) { return std::string(levels, '[') + std::string(levels, ']'); };
    CHECK(!parse_json(nested(kMostJsonLevels)).is_discarded());
    CHECK(parse_json(nested(kMostJsonLevels + 2)).is_discarded());
    CHECK(parse_json(nested(300'000)).is_discarded());
    CHECK(!parse_json(" {} ").is_discarded());
    CHECK(parse_json("null").is_null());
    const std::string digits(400, '9');
    CHECK(parse_json("[-1e400, " + digits + ", 3, \"\\\"1e400\", 1.5E+999]") ==
          nlohmann::json{-1e308, 1e308, 3, "\"1e400", 1e308});
    CHECK(excerpt(parse_json("-1e400")) == "a number of 1e308 or more");
    CHECK(parse_json("[1e400").is_discarded());
}
