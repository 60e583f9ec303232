// counted.h - a number and what it counts
#pragma once
#include <cstdint>
#include <string>

namespace llmc {

// The noun as it stands with the number: it takes an s with all but 1.
inline std::string noun_of(std::int64_t number, const std::string& noun) { return number == 1 ? noun : noun + 's'; }

// "1 step", "0 steps", "1200 steps"
inline std::string counted(std::int64_t number, const std::string& noun) {
    return std::to_string(number) + ' ' + noun_of(number, noun);
}

}  // namespace llmc
