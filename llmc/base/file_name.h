// file_name.h - what a file may name another one by
#pragma once
#include <algorithm>
#include <string_view>

namespace llmc {

// The name of a file in the folder itself, not a path that leads out of it, and fit for a message of one line.
inline bool is_file_name(std::string_view name) {
    constexpr std::size_t kLongest = 255;
    return !name.empty() && name.size() <= kLongest && name != "." && name != ".." &&
           std::ranges::none_of(name, [](unsigned char c) { return c < ' ' || c == 127 || c == '/'; });
}

}  // namespace llmc
