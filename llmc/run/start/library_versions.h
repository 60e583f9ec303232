// library_versions.h - what computes for this build's device beside our own kernels: library_versions_host.cpp |
// library_versions_cuda.cpp
#pragma once
#include <string>
#include <utility>
#include <vector>

namespace llmc {

// By name, in the order in which they are told: a version each, or "no".
std::vector<std::pair<std::string, std::string>> library_versions();

// "12.4.0"
inline std::string dotted_version(int major, int minor, int patch) {
    return std::to_string(major) + '.' + std::to_string(minor) + '.' + std::to_string(patch);
}

}  // namespace llmc
