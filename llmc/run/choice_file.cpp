// choice_file.cpp - choices as JSON, read with suspicion and written whole
#include "llmc/run/choice_file.h"

#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "kernels/device/error.h"
#include "llmc/base/json_text.h"
#include "llmc/base/staged_file.h"

namespace llmc {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

constexpr const char* kFormat = "train_gpt2 choices 1";

// Of an environment variable; relative ones are to be ignored (XDG Base Directory Specification).
fs::path absolute_path(const char* variable) {
    const char* const value = std::getenv(variable);
    const fs::path path = value ? value : "";
    return path.is_absolute() ? path : fs::path();
}

}  // namespace

std::string default_choice_file() {
    fs::path cache = absolute_path("XDG_CACHE_HOME");
    if (const fs::path home = absolute_path("HOME"); cache.empty() && !home.empty()) cache = home / ".cache";
    return cache.empty() ? "" : (cache / "train_gpt2" / "choices.json").string();
}

ChoiceFile read_choices(const std::string& path) {
    std::error_code refused;
    const fs::file_status status = fs::status(path, refused);
    if (status.type() == fs::file_type::not_found) return {};
    if (!refused && status.type() != fs::file_type::regular) return {{}, "it is not a file"};
    errno = 0;
    std::ifstream in(path, std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(in), {}};
    if (!in) return {{}, "it cannot be read: " + std::string(std::strerror(errno ? errno : EIO))};
    const json contents = parse_json(text);
    if (contents.is_discarded()) return {{}, "it is no JSON, or only a part of it"};
    if (!contents.is_object() || contents.value("format", json()) != kFormat)
        return {{}, "its \"format\" is not \"" + std::string(kFormat) + '"'};
    try {
        return {choices_from_json(contents.at("devices")), ""};
    } catch (const json::exception&) {
        return {{}, "its \"devices\" are not as this program writes them"};
    }
}

void add_choices(const std::string& path, const ChoicesByDevice& news) {
    ChoiceFile file = read_choices(path);
    if (!file.fault.empty()) throw Error(file.fault, Blame::runtime);
    for (const auto& [device, table] : news)
        for (const auto& [library, choices] : table)
            for (const auto& [problem, choice] : choices) file.choices[device][library][problem] = choice;
    const json contents = {{"format", kFormat}, {"devices", to_json(file.choices)}};
    write_whole(path, text_of(contents, 1) + '\n');
}

json to_json(const kernels::ChoiceTable& table) {
    json all = json::object();
    for (const auto& [library, choices] : table)
        for (const auto& [problem, choice] : choices)
            all[library][problem] = {{"taken", choice.taken}, {"why", choice.why}, {"seconds", choice.seconds}};
    return all;
}

json to_json(const ChoicesByDevice& choices) {
    json all = json::object();
    for (const auto& [device, table] : choices) all[device] = to_json(table);
    return all;
}

ChoicesByDevice choices_from_json(const json& all) {
    ChoicesByDevice choices;
    // as maps: what is no object of objects throws
    using Libraries = std::map<std::string, std::map<std::string, json>>;
    for (const auto& [device, libraries] : all.get<std::map<std::string, Libraries>>())
        for (const auto& [library, problems] : libraries)
            for (const auto& [problem, choice] : problems)
                choices[device][library][problem] = {choice.at("taken").get<std::string>(),
                                                     choice.at("why").get<std::string>(),
                                                     choice.at("seconds").get<double>()};
    return choices;
}

}  // namespace llmc
