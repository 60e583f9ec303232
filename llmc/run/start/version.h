// version.h - the version, compiler, device and libraries of this build
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

namespace llmc {

// Version, git commit of the build ("-dirty" if the sources were changed; null without git), compiler, instruction set,
// device, libraries, and a fingerprint of the program's file. All values are strings.
nlohmann::ordered_json version_json();
// The same in one line, without null values.
std::string version_text(const nlohmann::ordered_json& version);
std::string version_text();  // of version_json()

// ---- in version_host.cpp and version_cuda.cpp, the only files that a new commit recompiles

// The git commit of the sources; empty without git.
std::string build_commit();
// Names and versions of the compute libraries of this build's device ("no": not in this build), in the order of the
// output.
std::vector<std::pair<std::string, std::string>> library_versions();
// "12.4.0"
inline std::string dotted_version(int major, int minor, int patch) {
    return std::to_string(major) + '.' + std::to_string(minor) + '.' + std::to_string(patch);
}

}  // namespace llmc
