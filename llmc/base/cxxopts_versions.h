// cxxopts_versions.h - what versions 2.2 to 3.3 of cxxopts call differently
#pragma once
#define CXXOPTS_VECTOR_DELIMITER '\0'  // names of files may contain commas
#include <cxxopts.hpp>
#include <set>
#include <string>
#include <vector>

namespace llmc {

struct ParsedWords {
    cxxopts::ParseResult given;
    std::vector<std::string> unmatched;  // words that are no option, where options.allow_unrecognised_options()
};

#if CXXOPTS__VERSION_MAJOR > 3 || (CXXOPTS__VERSION_MAJOR == 3 && CXXOPTS__VERSION_MINOR >= 1)
using CxxoptsError = cxxopts::exceptions::exception;
inline std::vector<std::string> long_names(const cxxopts::HelpOptionDetails& option) { return option.l; }
#else
using CxxoptsError = cxxopts::OptionException;
inline std::vector<std::string> long_names(const cxxopts::HelpOptionDetails& option) { return {option.l}; }
#endif

#if CXXOPTS__VERSION_MAJOR >= 3
inline void set_help_width(cxxopts::Options& options, int columns) { options.set_width(std::size_t(columns)); }

// The first word is the program's name.
inline ParsedWords parse_words(cxxopts::Options& options, const std::vector<std::string>& words) {
    std::vector<const char*> pointers;
    for (const std::string& word : words) pointers.push_back(word.c_str());
    cxxopts::ParseResult given = options.parse(int(pointers.size()), pointers.data());
    std::vector<std::string> unmatched = given.unmatched();
    return {std::move(given), std::move(unmatched)};
}
#else
inline void set_help_width(cxxopts::Options&, int) {}  // 76 columns

// Version 2 leaves what it does not know in argv, except short flags, which it skips without a word.
inline ParsedWords parse_words(cxxopts::Options& options, const std::vector<std::string>& words) {
    std::set<std::string> shorts, with_value;
    for (const std::string& group : options.groups())
        for (const auto& option : options.group_help(group).options)
            for (const std::string& flag : {"-" + option.s, "--" + option.l}) {
                if (flag.size() == 2) shorts.insert(flag);
                if (!option.is_boolean) with_value.insert(flag);
            }
    std::vector<std::string> known, unmatched;
    for (std::size_t i = 0; i < words.size(); ++i) {
        const std::string& word = words[i];
        const bool is_short = i > 0 && word.size() > 1 && word[0] == '-' && word[1] != '-';
        (is_short && !shorts.contains(word.substr(0, 2)) ? unmatched : known).push_back(word);
        if (with_value.contains(word) && i + 1 < words.size()) known.push_back(words[++i]);
        if (word == "--")
            while (i + 1 < words.size()) known.push_back(words[++i]);
    }
    std::vector<char*> pointers;
    for (std::string& word : known) pointers.push_back(word.data());
    int count = int(pointers.size());
    char** rest = pointers.data();
    cxxopts::ParseResult given = options.parse(count, rest);
    unmatched.insert(unmatched.end(), rest + 1, rest + count);
    return {std::move(given), std::move(unmatched)};
}
#endif

}  // namespace llmc
