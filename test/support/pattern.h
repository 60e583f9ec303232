// pattern.h - POSIX extended regular expressions; <regex> takes the compiler 4 seconds in every file that uses it
#pragma once
#include <regex.h>

#include <array>
#include <string>
#include <vector>

#include "kernels/base/error.h"

namespace test {

class Pattern {
public:
    explicit Pattern(const std::string& pattern) {
        base::require(regcomp(&compiled_, pattern.c_str(), REG_EXTENDED) == 0, "pattern", pattern, "a POSIX pattern");
    }
    Pattern(const Pattern&) = delete;
    ~Pattern() { regfree(&compiled_); }

    // Every match in `text`: the match and its groups, up to three.
    std::vector<std::vector<std::string>> matches(const std::string& text) const {
        std::vector<std::vector<std::string>> found;
        std::array<regmatch_t, 4> at;
        for (const char* rest = text.c_str(); regexec(&compiled_, rest, at.size(), at.data(), found.empty()
                                                          ? 0 : REG_NOTBOL) == 0 && at[0].rm_eo > 0;
             rest += at[0].rm_eo) {
            found.emplace_back();
            for (const regmatch_t& part : at)
                found.back().push_back(part.rm_so < 0 ? "" : std::string(rest + part.rm_so, rest + part.rm_eo));
        }
        return found;
    }
    bool in(const std::string& text) const { return regexec(&compiled_, text.c_str(), 0, nullptr, 0) == 0; }

private:
    regex_t compiled_;
};

}  // namespace test
