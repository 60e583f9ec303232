// version.h - what this build is and can do
#pragma once
#include <nlohmann/json.hpp>
#include <string>

namespace llmc {

// Version, compiler, instruction set, device, libraries, and a fingerprint of the program's file.
nlohmann::ordered_json version_json();
std::string version_text();  // the same, one line

}  // namespace llmc
