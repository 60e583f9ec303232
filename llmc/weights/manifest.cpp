// manifest.cpp - writes the manifest as JSON, and compares a folder with it
#include "llmc/weights/manifest.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "kernels/base/error.h"
#include "llmc/base/number_text.h"
#include "llmc/base/file_name.h"
#include "llmc/base/file_status.h"
#include "llmc/base/json_text.h"
#include "llmc/base/input_file.h"
#include "llmc/base/output_file.h"

namespace llmc {

namespace fs = std::filesystem;
using nlohmann::json;

void to_json(json& out, const FileFingerprint& file) { out = {{"bytes", file.bytes}, {"xxh3", file.xxh3}}; }
void from_json(const json& in, FileFingerprint& file) {
    in.at("bytes").get_to(file.bytes);
    in.at("xxh3").get_to(file.xxh3);
}

namespace {

constexpr const char* kTokenizerName = "tokenizer.json";
constexpr const char *kRestore = "restore it, or resume from another checkpoint",
                     *kRestoreModel = "restore it, or remove manifest.json if you changed the model yourself";

std::string checksum_of(const json& files) {
    const std::string text = text_of(files);
    return fingerprint(std::as_bytes(std::span(text)));
}

bool is_checksum(const json& value) {
    const std::string text = value.is_string() ? value.get<std::string>() : "";
    return text.size() == 16 && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

std::string according_to_manifest() { return std::string(" according to ") + kManifestName; }

Manifest read_manifest(const fs::path& folder, const char* hint) {
    const fs::path file = folder / kManifestName;
    require(is_present(file), "the checkpoint " + folder.string(), "without " + std::string(kManifestName),
            "a complete checkpoint", hint);
    const json read = parse_json(read_text(file.string(), "a checkpoint's manifest"));
    const auto require_whole = [&](bool whole) {
        require(whole, "the manifest " + file.string(), "damaged", "the contents that were written", hint);
    };
    require_whole(read.is_object() && read.contains("files") && read.contains("xxh3") &&
                  read["xxh3"] == checksum_of(read["files"]));
    for (const json& file : read["files"])  // checked here, because the library converts fractions to integers
        require_whole(file.is_object() && file.contains("bytes") && file["bytes"].is_number_integer() &&
                      file.contains("xxh3") && is_checksum(file["xxh3"]));
    try {
        const auto manifest = read["files"].get<Manifest>();
        require_whole(!manifest.empty() &&
                      std::ranges::all_of(manifest, [](const auto& file) { return is_file_name(file.first); }));
        return manifest;
    } catch (const json::exception&) {
        require_whole(false);
        throw;
    }
}

// Returns the sum of the sizes.
std::int64_t check_sizes(const fs::path& folder, const Manifest& manifest, const char* hint) {
    std::int64_t all = 0;
    for (const auto& [name, file] : manifest) {
        const std::string path = (folder / name).string();
        const auto status = find_status(path);
        require(status && S_ISREG(status->st_mode), path, status ? "not a regular file" : "missing",
                "a file" + according_to_manifest(), hint);
        require(status->st_size == file.bytes, path, counted(status->st_size, "byte"),
                counted(file.bytes, "byte") + according_to_manifest(), hint);
        all += file.bytes;
    }
    return all;
}

}  // namespace

std::string text_of(const Manifest& manifest) { return text_of(json(manifest)); }
Manifest manifest_of(std::string_view text) { return parse_json(text).get<Manifest>(); }

void write_manifest(const fs::path& folder, const Manifest& manifest) {
    const json files = manifest;
    write_file(folder / kManifestName, text_of(json{{"files", files}, {"xxh3", checksum_of(files)}}, 2) + '\n');
}

void check_manifest(const fs::path& folder, const std::function<void(double)>& on_progress,
                    std::initializer_list<std::string_view> only) {
    const char* const hint = only.size() > 0 ? kRestoreModel : kRestore;
    Manifest manifest = read_manifest(folder, hint);
    if (only.size() > 0)
        std::erase_if(manifest, [&](const auto& file) { return std::ranges::find(only, file.first) == only.end(); });
    // The fast checks come first: all sizes, then all contents.
    const std::int64_t all = check_sizes(folder, manifest, hint);
    std::int64_t read = 0;
    for (const auto& [name, file] : manifest) {
        const auto count = [&](std::int64_t bytes) {
            read += bytes;
            if (on_progress) on_progress(double(read) / double(all));
        };
        const std::string found = fingerprint_of_file(folder / name, count).xxh3;
        require(found == file.xxh3, "the checksum of " + (folder / name).string(), found,
                file.xxh3 + according_to_manifest(), hint);
    }
}

void check_model_of_manifest(const fs::path& folder) {
    if (!is_present(folder / kManifestName)) return;
    const bool tokenizer = is_present(folder / kTokenizerName);  // may be removed: others are used then
    check_manifest(folder, {}, {"config.json", "model.safetensors", tokenizer ? kTokenizerName : ""});
}

bool has_files_of_manifest(const fs::path& folder) {
    try {
        check_sizes(folder, read_manifest(folder, kRestore), kRestore);
        return true;
    } catch (const Error&) {
        return false;
    }
}

}  // namespace llmc
