// nlohmann_json.cpp - the nlohmann-json features that train_gpt2 uses; scripts/install_deps.sh compiles it
//
// library:  nlohmann-json
// expected: version 3.10
// packages: nlohmann-json3-dev
// version:  NLOHMANN_JSON_VERSION_MAJOR.NLOHMANN_JSON_VERSION_MINOR.NLOHMANN_JSON_VERSION_PATCH
#include <nlohmann/json.hpp>
#include <string_view>

int main() {
    using nlohmann::json;
    const auto shallow = [](int depth, json::parse_event_t, const json&) { return depth < 100; };
    const json value = json::parse(std::string_view("{\"a\": [1, 2]}"), shallow, false);
    nlohmann::ordered_json ordered{{"b", 1}, {"a", nlohmann::ordered_json::array()}};
    for (const auto& [key, item] : ordered.items()) ordered[key] = item;
    try {
        return value.contains("a") && ordered.dump(1, ' ', false, json::error_handler_t::replace).empty();
    } catch (const json::other_error&) {
        return 1;
    }
}
