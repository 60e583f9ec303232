// manifest.h - the list of a checkpoint's files with size and checksum, to detect incomplete or changed files before
// they are used
//
//   OUT/step_00000100/manifest.json   {"files": {NAME: {"bytes": 1234, "xxh3": "16 digits"}, ...},
//                                      "xxh3": the checksum of "files" itself, as text on one line}
//
// Files that are not listed are ignored.
#pragma once
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "llmc/base/fingerprint.h"

namespace llmc {

using Manifest = std::map<std::string, FileFingerprint>;  // by name within the folder

inline constexpr const char* kManifestName = "manifest.json";

// Declared where a map of fingerprints is known to be JSON: the library decides once per translation unit.
void to_json(nlohmann::json& out, const FileFingerprint& file);
void from_json(const nlohmann::json& in, FileFingerprint& file);

// As JSON on one line, to send to other ranks, and back.
std::string text_of(const Manifest& manifest);
Manifest manifest_of(std::string_view text);

// Throws a run-time Error if the system refuses.
void write_manifest(const std::filesystem::path& folder, const Manifest& manifest);

// Reads all files of a checkpoint, or only those of these names. Throws Error that names the folder and the file that
// is missing, or whose length or contents have changed; UnreadableError (file_status.h) if the system does not let it
// read one. Calls `on_progress` repeatedly with the part that was read, 0 to 1.
void check_manifest(const std::filesystem::path& folder, const std::function<void(double)>& on_progress = {},
                    std::initializer_list<std::string_view> only = {});
// Compares the model with the manifest, if the folder has one: config.json, model.safetensors and, if it is there,
// tokenizer.json, as check_manifest().
void check_model_of_manifest(const std::filesystem::path& folder);
// Whether the folder has a manifest and its files, with their sizes. Does not read the files.
bool has_files_of_manifest(const std::filesystem::path& folder);

}  // namespace llmc
