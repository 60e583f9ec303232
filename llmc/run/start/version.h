// version.h - what this build is and can do
#pragma once
#include <nlohmann/json.hpp>
#include <string>

namespace llmc {

// Version, the commit that git knew when this was built ("-dirty" where the sources had changed since; null without
// git), compiler, instruction set, device, libraries, and a fingerprint of the program's file. All of them texts.
nlohmann::ordered_json version_json();
// The same in one line, without what is null.
std::string version_text(const nlohmann::ordered_json& version);

}  // namespace llmc
