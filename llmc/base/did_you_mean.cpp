// did_you_mean.cpp - the edit distance of two names, and the nearest of several
#include "llmc/base/did_you_mean.h"

#include <algorithm>
#include <utility>

#include "kernels/base/error.h"
#include "llmc/base/names.h"

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

namespace {

// Whether a word of `given`, of at least two letters, is also in `name`.
bool has_word_of(const std::string& name, std::string_view given) {
    for (std::size_t begin = 0, end = 0; end != given.npos; begin = end + 1) {
        end = given.find('-', begin);
        const std::string_view word = given.substr(begin, end - begin);
        if (word.size() > 1 && ('-' + name + '-').find('-' + std::string(word) + '-') != name.npos) return true;
    }
    return false;
}

}  // namespace

std::string did_you_mean(std::string_view given, const std::vector<std::string>& known, const std::string& dashes) {
    constexpr std::size_t kLongest = 100, kMost = 3;  // longer than any name; an argument may have any length
    if (given.empty() || given.size() > kLongest) return {};
    std::vector<std::pair<int, std::string>> near, longer, alike;  // by distance
    for (const std::string& name : known) {
        const int distance = edit_distance(given, name), most = int(std::min(given.size(), name.size())) / 3;
        if (distance <= std::max(1, most) && distance < int(given.size())) near.emplace_back(distance, name);
        if (given.size() >= 3 && name.starts_with(given)) longer.emplace_back(distance, name);
        if (has_word_of(name, given)) alike.emplace_back(distance, name);
    }
    auto& chosen = !near.empty() ? near : !longer.empty() ? longer : alike;
    std::ranges::sort(chosen);
    std::vector<std::string> names;
    for (const auto& [distance, name] : chosen)
        if (names.size() < kMost && (near.empty() || distance == near.front().first)) names.push_back(dashes + name);
    return names.empty() ? "" : "did you mean " + list_names(names) + '?';
}

void refuse_argument(const std::string& argument, const std::vector<std::string>& flags, const std::string& help) {
    for (const char* const dash : {"\u2013", "\u2014", "\u2212"})  // text processors replace hyphens by these
        if (argument.starts_with(dash))
            fail("the argument " + in_quotes(argument), "preceded by a long dash", "hyphens",
                 "type the flag as --flag or -f");
    if (argument.size() < 2 || argument[0] != '-')
        fail("the argument " + in_quotes(argument), "not understood", "flags only", "see " + help + "; quote a glob");
    const std::string flag = argument.substr(0, argument.find('='));
    // In our spelling; without dashes, which must not count as matching letters.
    std::string given = flag.substr(std::min(flag.find_first_not_of('-'), flag.size()));
    std::ranges::replace(given, '_', '-');
    std::vector<std::string> names;
    for (const std::string& known : flags)
        if (known.starts_with("--")) names.push_back(known.substr(2));
    fail("the flag " + in_quotes(flag), "unknown", "one of those that " + help + " shows",
         did_you_mean(given, names, "--"));
}

void refuse_flag_as_value(const std::string& flag, const std::string& next) {
    fail(flag, "followed by the flag " + in_quotes(next), "a value", "if that is the value, join it: " + flag + "=...");
}

}  // namespace llmc
