// version.h - what this build is and can do
#pragma once
#include <nlohmann/json.hpp>
#include <string>

namespace llmc {

// Version, the commit that git knew when this was built ("-dirty" where the sources had changed since; null without
// git), compiler, instruction set, device, libraries, and a fingerprint of the program's file. All of them texts.
nlohmann::ordered_json version_json();
// The libraries that multiply matrices and compute attention for this build's device, by name: a version each, or "no".
// version_host.cpp | version_cuda.cpp
nlohmann::ordered_json library_versions();
// "12.4.0"
std::string dotted_version(int major, int minor, int patch);
// version_json() in one line, without what is null.
std::string version_text(const nlohmann::ordered_json& version);

}  // namespace llmc
