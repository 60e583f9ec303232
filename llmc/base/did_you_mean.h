// did_you_mean.h - the known name that somebody who mistyped one had in mind
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace llmc {

// Letters put in, left out, replaced, or swapped with their neighbour, that make one of the other (the restricted
// Damerau-Levenshtein distance).
int edit_distance(std::string_view a, std::string_view b);

// Of the known names the nearest, where at most a third of the letters are wrong (one in a short name); else the
// shortest that goes on where `given`, of three letters at least, ends; else "".
std::string nearest_name(std::string_view given, const std::vector<std::string>& known);

// "did you mean NAME?", or "".
std::string did_you_mean(std::string_view given, const std::vector<std::string>& known);

// A word of a command line that no flag takes. `flags` have their dashes. Throws Error that names it, and the flag that
// was meant, perhaps; `help`: what shows the flags, such as "dev/tokenize --help".
[[noreturn]] void refuse_argument(const std::string& argument, const std::vector<std::string>& flags,
                                  const std::string& help);

// The word after a flag that takes a value is `next`, one of the flags: the value has been forgotten. Throws Error that
// names both, and how to give such a value.
[[noreturn]] void refuse_flag_as_value(const std::string& flag, const std::string& next);

}  // namespace llmc
