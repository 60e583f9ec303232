// version.h - the version, compiler, device and libraries of this build
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace llmc {

// Version, git commit of the build ("-dirty" if the sources were changed; null without git), compiler, instruction set,
// device, libraries, and a fingerprint of the program's file. All values are strings.
nlohmann::ordered_json version_json();
// The same in one line, without null values.
std::string version_text(const nlohmann::ordered_json& version);
std::string version_text();  // of version_json()

}  // namespace llmc
