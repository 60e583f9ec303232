// manifest.cpp - writes the manifest as JSON, and compares a folder with it
#include "llmc/weights/manifest.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "kernels/base/error.h"
#include "llmc/base/counted.h"
#include "llmc/base/file_name.h"
#include "llmc/base/json_text.h"
#include "llmc/base/mapped_file.h"
#include "llmc/base/staged_file.h"

namespace llmc {

namespace fs = std::filesystem;
using nlohmann::json;

void to_json(json& out, const FileFingerprint& file) { out = {{"bytes", file.bytes}, {"xxh3", file.xxh3}}; }
void from_json(const json& in, FileFingerprint& file) {
    in.at("bytes").get_to(file.bytes);
    in.at("xxh3").get_to(file.xxh3);
}

namespace {

constexpr const char* kRestore = "restore it, or resume from another checkpoint";

std::string checksum_of(const json& files) {
    const std::string text = text_of(files);
    return fingerprint(std::as_bytes(std::span(text)));
}

bool is_checksum(const json& value) {
    const std::string text = value.is_string() ? value.get<std::string>() : "";
    return text.size() == 16 && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

Manifest read_manifest(const fs::path& folder) {
    const fs::path file = folder / kManifestName;
    require(fs::exists(file), "the checkpoint " + folder.string(), "without " + std::string(kManifestName),
            "a complete checkpoint", kRestore);
    const json read = parse_json(MappedFile(file.string(), "a checkpoint's manifest").text());
    const auto require_whole = [&](bool whole) {
        require(whole, "the manifest " + file.string(), "damaged", "the contents that were written", kRestore);
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

}  // namespace

std::string text_of(const Manifest& manifest) { return text_of(json(manifest)); }
Manifest manifest_of(std::string_view text) { return parse_json(text).get<Manifest>(); }

void write_manifest(const fs::path& folder, const Manifest& manifest) {
    const json files = manifest;
    write_whole(folder / kManifestName, text_of(json{{"files", files}, {"xxh3", checksum_of(files)}}, 2) + '\n');
}

void check_manifest(const fs::path& folder, const std::function<void(double)>& on_progress,
                    std::initializer_list<std::string_view> only) {
    Manifest manifest = read_manifest(folder);
    if (only.size() > 0)
        std::erase_if(manifest, [&](const auto& file) { return std::ranges::find(only, file.first) == only.end(); });
    const auto expect = [&](const std::string& name, bool holds, const std::string& found, const std::string& wanted) {
        require(holds, (folder / name).string(), found, wanted + " according to " + kManifestName, kRestore);
    };
    // The fast checks come first: all sizes, then all contents.
    std::int64_t all = 0, read = 0;
    for (const auto& [name, file] : manifest) {
        std::error_code fault;
        const auto bytes = std::int64_t(fs::file_size(folder / name, fault));
        expect(name, !fault, "missing or unreadable (" + fault.message() + ")", "a file");
        expect(name, bytes == file.bytes, counted(bytes, "byte"), counted(file.bytes, "byte"));
        all += bytes;
    }
    for (const auto& [name, file] : manifest) {
        const auto count = [&](std::int64_t bytes) {
            read += bytes;
            if (on_progress) on_progress(double(read) / double(all));
        };
        const std::string found = fingerprint_of_file(folder / name, count).xxh3;
        expect(name, found == file.xxh3, "with the checksum " + found, file.xxh3);
    }
}

}  // namespace llmc
