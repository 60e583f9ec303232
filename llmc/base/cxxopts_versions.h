// cxxopts_versions.h - what versions 2.2 to 3.3 of cxxopts call differently
#pragma once
#define CXXOPTS_VECTOR_DELIMITER '\0'  // names of files may contain commas
#include <cxxopts.hpp>
#include <string>
#include <utility>
#include <vector>

namespace llmc {

struct ParsedWords {
    cxxopts::ParseResult given;
    std::vector<std::string> unmatched;  // words that are no option
};

#if CXXOPTS__VERSION_MAJOR > 3 || (CXXOPTS__VERSION_MAJOR == 3 && CXXOPTS__VERSION_MINOR >= 1)
using CxxoptsError = cxxopts::exceptions::exception;
inline std::vector<std::string> long_names(const cxxopts::HelpOptionDetails& option) { return option.l; }
#else
using CxxoptsError = cxxopts::OptionException;
inline std::vector<std::string> long_names(const cxxopts::HelpOptionDetails& option) { return {option.l}; }
#endif

inline void set_help_width([[maybe_unused]] cxxopts::Options& options, [[maybe_unused]] int columns) {
#if CXXOPTS__VERSION_MAJOR >= 3
    options.set_width(std::size_t(columns));  // in version 2 it is 76
#endif
}

// The first word is the program's name.
inline ParsedWords parse_words(cxxopts::Options& options, std::vector<std::string> words) {
    std::vector<char*> pointers;
    for (std::string& word : words) pointers.push_back(word.data());
    int count = int(pointers.size());
    char** rest = pointers.data();
    cxxopts::ParseResult given = options.parse(count, rest);
#if CXXOPTS__VERSION_MAJOR >= 3
    std::vector<std::string> unmatched = given.unmatched();
#else
    std::vector<std::string> unmatched(rest + 1, rest + count);
#endif
    return {std::move(given), std::move(unmatched)};
}

}  // namespace llmc
