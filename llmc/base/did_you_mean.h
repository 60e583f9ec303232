// did_you_mean.h - suggests the known name nearest to a mistyped one
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace llmc {

// The number of insertions, deletions, replacements and swaps of adjacent letters that turn one into the other
// (restricted Damerau-Levenshtein distance).
int edit_distance(std::string_view a, std::string_view b);

// "did you mean A, B or C?", or "": at most three known names, the nearest first, each after `dashes`. Those in which
// at most a third of the letters differ (one in a short name); otherwise those that start with `given`, of at least
// three letters; otherwise those that share a word of at least two letters with it. Words are separated by hyphens.
std::string did_you_mean(std::string_view given, const std::vector<std::string>& known, const std::string& dashes = {});

// Refuses an argument that is neither a flag nor the value of one. Throws Error that names it and, if there is one,
// the nearest flags. `flags` include their dashes; `help`: the command that lists them, such as "dev/tokenize --help".
[[noreturn]] void refuse_argument(const std::string& argument, const std::vector<std::string>& flags,
                                  const std::string& help);

// Refuses `next`, itself a flag, as the value of `flag`: the value was probably forgotten. Throws Error that names
// both and says how to pass such a value.
[[noreturn]] void refuse_flag_as_value(const std::string& flag, const std::string& next);

}  // namespace llmc
