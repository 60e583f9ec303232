// file_name.h - checks a file name that was read from a file
#pragma once
#include <algorithm>
#include <string_view>

namespace llmc {

// Whether `name` names a file in the same folder (not a path that leads out of it) and fits in a one-line message.
inline bool is_file_name(std::string_view name) {
    constexpr std::size_t kLongest = 255;
    return !name.empty() && name.size() <= kLongest && name != "." && name != ".." &&
           std::ranges::none_of(name, [](unsigned char c) { return c < ' ' || c == 127 || c == '/'; });
}

}  // namespace llmc
