// file_name.h - endings of file names, and the check of a name that was read from a file
#pragma once
#include <algorithm>
#include <cctype>
#include <string_view>

namespace llmc {

// Whether the name ends with `ending`, which is in lower case; the name may be in either.
inline bool has_ending(std::string_view name, std::string_view ending) {
    return name.size() >= ending.size() && std::ranges::equal(name.substr(name.size() - ending.size()), ending, {},
                                                              [](unsigned char c) { return char(std::tolower(c)); });
}

// Whether `name` names a file in the same folder (not a path that leads out of it) and fits in a one-line message.
inline bool is_file_name(std::string_view name) {
    constexpr std::size_t kLongest = 255;
    return !name.empty() && name.size() <= kLongest && name != "." && name != ".." &&
           std::ranges::none_of(name, [](unsigned char c) { return c < ' ' || c == 127 || c == '/'; });
}

}  // namespace llmc
