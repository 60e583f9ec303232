// tune_file.cpp - autotuning results as JSON, validated when read and replaced atomically
#include "llmc/model/tune_file.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "kernels/base/error.h"
#include "llmc/base/json_text.h"
#include "llmc/base/staged_file.h"

namespace llmc {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

constexpr const char* kFormat = "train_gpt2 choices 1";

// The value of an environment variable; relative paths are ignored (XDG Base Directory Specification).
fs::path absolute_path(const char* variable) {
    const char* const value = std::getenv(variable);
    const fs::path path = value ? value : "";
    return path.is_absolute() ? path : fs::path();
}

// Rejects control characters, because the text is printed on the terminal.
std::string plain_text(const json& value) {
    const auto text = value.get<std::string>();
    if (std::ranges::any_of(text, [](unsigned char c) { return c < ' ' || c == 127; }))
        throw json::other_error::create(0, "a control character", &value);
    return text;
}

double seconds(const json& value) {
    const double number = value.get<double>();
    if (!(number >= 0)) throw json::other_error::create(0, "a time below 0", &value);
    return number;
}

}  // namespace

std::string default_tune_file() {
    fs::path cache = absolute_path("XDG_CACHE_HOME");
    if (const fs::path home = absolute_path("HOME"); cache.empty() && !home.empty()) cache = home / ".cache";
    return cache.empty() ? "" : (cache / "train_gpt2" / "choices.json").string();
}

TuneFile read_tune_file(const std::string& path) {
    std::error_code refused;
    const fs::file_status status = fs::status(path, refused);
    if (status.type() == fs::file_type::not_found) return {};
    if (!refused && status.type() != fs::file_type::regular) return {{}, "it is not a file"};
    errno = 0;
    std::ifstream in(path, std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(in), {}};
    if (!in) return {{}, "it cannot be read: " + std::string(std::strerror(errno ? errno : EIO))};
    const json contents = parse_json(text);
    if (contents.is_discarded()) return {{}, "it is not valid JSON"};
    if (!contents.is_object() || contents.value("format", json()) != kFormat)
        return {{}, "its \"format\" is not \"" + std::string(kFormat) + '"'};
    try {
        return {tuned_from_json(contents.at("devices")), ""};
    } catch (const json::exception&) {
        return {{}, "its \"devices\" are not in this program's format"};
    }
}

void add_to_tune_file(const std::string& path, const TunedByDevice& new_results) {
    TuneFile file = read_tune_file(path);
    if (!file.fault.empty()) throw Error(file.fault, Blame::runtime);
    for (const auto& [device, table] : new_results)
        for (const auto& [library, tuned] : table)
            for (const auto& [problem, choice] : tuned) file.tuned[device][library][problem] = choice;
    const json contents = {{"format", kFormat}, {"devices", to_json(file.tuned)}};
    std::error_code ignored;  // the file does not exist: no link to follow
    const fs::path file_itself = fs::canonical(path, ignored);
    write_whole(file_itself.empty() ? path : file_itself.string(), text_of(contents, 1) + '\n');
}

json to_json(const kernels::TunedTable& table) {
    json all = json::object();
    for (const auto& [library, tuned] : table)
        for (const auto& [problem, choice] : tuned)
            all[library][problem] = {{"taken", choice.taken}, {"why", choice.why}, {"seconds", choice.seconds}};
    return all;
}

json to_json(const TunedByDevice& tuned) {
    json all = json::object();
    for (const auto& [device, table] : tuned) all[device] = to_json(table);
    return all;
}

TunedByDevice tuned_from_json(const json& all) {
    TunedByDevice tuned;
    // get() as maps throws for anything but nested objects
    using Libraries = std::map<std::string, std::map<std::string, json>>;
    for (const auto& [device, libraries] : all.get<std::map<std::string, Libraries>>())
        for (const auto& [library, problems] : libraries)
            for (const auto& [problem, choice] : problems)
                tuned[device][library][problem] = {plain_text(choice.at("taken")), plain_text(choice.at("why")),
                                                   seconds(choice.at("seconds"))};
    return tuned;
}

}  // namespace llmc
