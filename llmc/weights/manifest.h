// manifest.h - which files make a checkpoint, with size and checksum of each: what was not written to its end, or has
// changed since, is found before anything is read from it
//
//   OUT/step_00000100/manifest.json   {"files": {NAME: {"bytes": 1234, "xxh3": "16 digits"}, ...},
//                                      "xxh3": that of "files" itself, as text on one line}
//
// Files that are not named in it are none of its business.
#pragma once
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "llmc/base/fingerprint.h"

namespace llmc {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(FileFingerprint, bytes, xxh3)

using Manifest = std::map<std::string, FileFingerprint>;  // by name within the folder

inline constexpr const char* kManifestName = "manifest.json";

// Throws a run-time Error where the system refuses.
void write_manifest(const std::filesystem::path& folder, const Manifest& manifest);

// Reads all files of a checkpoint. Throws Error that names the folder, and the file that is missing, shorter, longer or
// other than it was written. `told`: of the share read, 0 to 1, time and again.
void check_manifest(const std::filesystem::path& folder, const std::function<void(double)>& told = {});

}  // namespace llmc
