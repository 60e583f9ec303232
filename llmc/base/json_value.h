// json_value.h - a JSON value as a member of a class, whose header then need not include the JSON library, which is
// slow to compile
#pragma once
#include <memory>
#include <nlohmann/json_fwd.hpp>

namespace llmc {

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
