// log.h - what a run leaves behind: log.jsonl, one JSON object a line, each written through at once
//
// {"event":"start", options, versions, device, model, data}   {"event":"step","step":0,"loss":..,...}   "val",
//                                                             "sample", "checkpoint", "skip", "end"
// A number that is unknown or not finite is null, never invented.
#pragma once
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace llmc {

class Log {
public:
    // Makes the folder and log.jsonl in it. Throws Error if that cannot be done or if the folder holds the log of
    // another run.
    // An empty `output_dir`: events go nowhere.
    explicit Log(const std::string& output_dir);

    // Writes one line; throws a run-time Error when it cannot be written.
    void write(const nlohmann::ordered_json& event);

    static constexpr const char* kFileName = "log.jsonl";

private:
    struct Close { void operator()(std::FILE* file) const { std::fclose(file); } };
    std::string path_;
    std::unique_ptr<std::FILE, Close> file_;
};

// null where there is no number.
inline nlohmann::ordered_json number_or_null(std::optional<double> value) {
    return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json();
}

}  // namespace llmc
