// did_you_mean.cpp - the edit distance of two names, and the nearest of several
#include "llmc/base/did_you_mean.h"

#include <algorithm>
#include <limits>

#include "kernels/base/error.h"

namespace llmc {

int edit_distance(std::string_view a, std::string_view b) {
    // Rows of the table of distances between prefixes of a and b: the last three are enough.
    std::vector<int> before_last, last(b.size() + 1), row(b.size() + 1);
    for (std::size_t j = 0; j <= b.size(); ++j) last[j] = int(j);
    for (std::size_t i = 1; i <= a.size(); ++i) {
        row[0] = int(i);
        for (std::size_t j = 1; j <= b.size(); ++j) {
            row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1])});
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                row[j] = std::min(row[j], before_last[j - 2] + 1);
        }
        before_last = last;
        last = row;
    }
    return last[b.size()];
}

std::string nearest_name(std::string_view given, const std::vector<std::string>& known) {
    constexpr std::size_t kLongest = 100;  // longer than any name; an argument may have any length
    if (given.empty() || given.size() > kLongest) return "";
    std::string nearest, longer;
    int least = std::numeric_limits<int>::max();
    for (const std::string& name : known) {
        const int distance = edit_distance(given, name);
        if (distance < least) {
            least = distance;
            nearest = name;
        }
        if (given.size() >= 3 && name.starts_with(given) && (longer.empty() || name.size() < longer.size()))
            longer = name;
    }
    const int most = std::max(1, int(std::min(given.size(), nearest.size())) / 3);
    return least <= most && least < int(given.size()) ? nearest : longer;
}

std::string did_you_mean(std::string_view given, const std::vector<std::string>& known) {
    const std::string nearest = nearest_name(given, known);
    return nearest.empty() ? "" : "did you mean " + nearest + '?';
}

void refuse_argument(const std::string& argument, const std::vector<std::string>& flags, const std::string& help) {
    for (const char* const dash : {"\u2013", "\u2014", "\u2212"})  // text processors replace hyphens by these
        if (argument.starts_with(dash))
            fail("the argument " + in_quotes(argument), "preceded by a long dash", "hyphens",
                 "type the flag as --flag or -f");
    if (argument.size() < 2 || argument[0] != '-')
        fail("the argument " + in_quotes(argument), "not understood", "flags only", "see " + help + "; quote a glob");
    const std::string flag = argument.substr(0, argument.find('='));
    const auto without_dashes = [](const std::string& name) {
        return name.substr(std::min(name.find_first_not_of('-'), name.size()));
    };
    std::vector<std::string> names;  // without dashes, which must not count as matching letters
    for (const std::string& known : flags)
        if (known.starts_with("--")) names.push_back(without_dashes(known));
    const std::string nearest = nearest_name(without_dashes(flag), names);
    fail("the flag " + in_quotes(flag), "unknown", "one of those that " + help + " shows",
         nearest.empty() ? "" : "did you mean --" + nearest + '?');
}

void refuse_flag_as_value(const std::string& flag, const std::string& next) {
    fail(flag, "followed by the flag " + in_quotes(next), "a value", "if that is the value, join it: " + flag + "=...");
}

}  // namespace llmc
