// version.h - what this build is and can do
#pragma once
#include <nlohmann/json.hpp>
#include <string>

namespace llmc {

// Program, version, device, compiler, instruction set and libraries.
nlohmann::ordered_json version_json();
std::string version_text();  // the same, one line

}  // namespace llmc
