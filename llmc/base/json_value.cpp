// json_value.cpp - the functions of a JSON value that need the JSON library
#include "llmc/base/json_value.h"

#include <nlohmann/json.hpp>

namespace llmc {

JsonValue::JsonValue() : JsonValue(nlohmann::json()) {}
JsonValue::JsonValue(const nlohmann::json& value) : value_(std::make_shared<const nlohmann::json>(value)) {}

bool operator==(const JsonValue& a, const JsonValue& b) { return *a == *b; }

void to_json(nlohmann::json& json, const JsonValue& value) { json = *value; }
void from_json(const nlohmann::json& json, JsonValue& value) { value = JsonValue(json); }

}  // namespace llmc
