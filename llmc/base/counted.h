// counted.h - a number and what it counts
#pragma once
#include <cstdint>
#include <string>

namespace llmc {

// "1 step", "0 steps", "1200 steps": a noun that takes an s with all numbers but 1.
inline std::string counted(std::int64_t number, const std::string& noun) {
    return std::to_string(number) + ' ' + noun + (number == 1 ? "" : "s");
}

}  // namespace llmc
