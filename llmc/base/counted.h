// counted.h - a number with its noun, singular or plural
#pragma once
#include <cstdint>
#include <string>

namespace llmc {

// The noun in the form that fits the number: with an s unless the number is 1.
inline std::string noun_of(std::int64_t number, const std::string& noun) { return number == 1 ? noun : noun + 's'; }

// "1 step", "0 steps", "1200 steps"
inline std::string counted(std::int64_t number, const std::string& noun) {
    return std::to_string(number) + ' ' + noun_of(number, noun);
}

}  // namespace llmc
