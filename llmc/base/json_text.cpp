// json_text.cpp - the library's writer and parser
#include "llmc/base/json_text.h"

#include <nlohmann/json.hpp>

namespace llmc {
namespace {

constexpr auto kReplaced = nlohmann::json::error_handler_t::replace;

}  // namespace

std::string text_of(const nlohmann::json& value, int indent) { return value.dump(indent, ' ', false, kReplaced); }
std::string text_of(const nlohmann::ordered_json& value, int indent) {
    return value.dump(indent, ' ', false, kReplaced);
}

std::string excerpt(const nlohmann::json& value) {
    std::string text = value.dump(-1, ' ', true, kReplaced);
    if (text.size() > 80) text = text.substr(0, 77) + "...";
    return text;
}

nlohmann::json parse_json(std::string_view text) {
    bool too_deep = false;
    auto value = nlohmann::json::parse(text, [&](int depth, nlohmann::json::parse_event_t, const nlohmann::json&) {
        too_deep = too_deep || depth > kMostJsonLevels;
        return !too_deep;
    }, false);
    return too_deep ? nlohmann::json(nlohmann::json::value_t::discarded) : value;
}

}  // namespace llmc
