// library_versions.h - versions of the compute libraries of this build's device: library_versions_host.cpp |
// library_versions_cuda.cpp
#pragma once
#include <string>
#include <utility>
#include <vector>

namespace llmc {

// Name and version ("no": not in this build), in the order of the output.
std::vector<std::pair<std::string, std::string>> library_versions();

// "12.4.0"
inline std::string dotted_version(int major, int minor, int patch) {
    return std::to_string(major) + '.' + std::to_string(minor) + '.' + std::to_string(patch);
}

}  // namespace llmc
