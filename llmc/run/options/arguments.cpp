// arguments.cpp - splits and joins flags and their values
#include "llmc/run/options/arguments.h"

#include <map>

#include "llmc/base/did_you_mean.h"
#include "llmc/base/value_text.h"
#include "llmc/run/options/llmc_flags.h"

namespace llmc {
namespace {

// A flag's long name ("--lr" for "-l" too), and whether it is a switch, without a value, that may be auto, or takes
// several.
struct KnownFlag {
    std::string name;
    bool is_switch, has_auto, is_list;
};
using KnownFlags = std::map<std::string, KnownFlag>;

KnownFlags known_flags(const cxxopts::Options& options) {
    KnownFlags known;
    for (const std::string& group : options.groups())
        for (const auto& option : options.group_help(group).options)
            for (const std::string& name : long_names(option)) {
                known["--" + name] = {"--" + name, option.is_boolean || option.has_implicit,
                                       option.has_implicit && !option.is_boolean, option.is_container};
                if (!option.s.empty()) known['-' + option.s] = known["--" + name];
            }
    return known;
}

// -fl3e-4: switches of one letter, and a flag with its value, as "--tf32", "--lr=3e-4". Empty: anything else.
std::vector<std::string> flags_of_letters(const std::string& word, const KnownFlags& known) {
    std::vector<std::string> flags;
    for (std::size_t i = 1; i < word.size(); ++i) {
        const auto flag = known.find(std::string("-") + word[i]);
        if (word[0] != '-' || flag == known.end()) return {};
        flags.push_back(flag->second.name);
        if (flag->second.is_switch) continue;
        if (i + 1 < word.size()) flags.back() += '=' + word.substr(i + 1);
        break;
    }
    return flags;
}

// The words as cxxopts needs them: a joined value must not contain newlines there, and that of a switch must be joined.
// Those that are not known are appended to `unmatched`.
std::vector<std::string> split_arguments(const cxxopts::Options& options, const KnownFlags& known,
                                         std::vector<std::string> given, const std::string& help,
                                         std::vector<std::string>& unmatched) {
    std::vector<std::string> words(given.begin(), given.begin() + (given.empty() ? 0 : 1));
    for (std::size_t i = 1; i < given.size(); ++i) {
        const std::string word = given[i], next = i + 1 < given.size() ? given[i + 1] : "";
        if (word == "--") {
            if (!help.empty()) refuse_argument(word, flag_names(options), help);
            words.insert(words.end(), given.begin() + std::ptrdiff_t(i), given.end());
            return words;
        }
        if (!help.empty() && word == "-h" && (next == "0" || next == "1"))
            refuse_foreign_flag("-h " + next, flag_names(options));
        const auto equals = word.find('=');
        const auto flag = known.find(word.substr(0, equals));
        if (flag == known.end()) {
            refuse_foreign_flag(word, flag_names(options));
            if (const std::vector<std::string> flags = flags_of_letters(word, known); !flags.empty()) {
                given[i] = flags.back();
                given.insert(given.begin() + std::ptrdiff_t(i--), flags.begin(), flags.end() - 1);
            } else {
                (help.empty() && (word == "-" || word[0] != '-') ? words : unmatched).push_back(word);
            }
            continue;
        }
        const auto& [name, is_switch, has_auto, is_list] = flag->second;
        if (is_switch && equals != word.npos)
            words.push_back(switch_with_value(name, word.substr(equals + 1), has_auto));
        else if (is_switch && (switch_value(next) || (has_auto && next == "auto")))
            words.push_back(switch_with_value(name, given[++i], has_auto));
        else words.push_back(name);
        if (is_switch) continue;
        if (equals != word.npos) words.push_back(word.substr(equals + 1));
        else if (known.contains(next.substr(0, next.find('=')))) refuse_flag_as_value(name, next);
        else if (i + 1 < given.size()) words.push_back(given[++i]);
        else fail(name, "without a value", "its value after it", "see --help");
        while (is_list && i + 1 < given.size() && !given[i + 1].starts_with('-'))
            words.insert(words.end(), {name, given[++i]});
    }
    return words;
}

}  // namespace

std::vector<std::string> flag_names(const cxxopts::Options& options) {
    std::vector<std::string> names;
    for (const auto& [name, flag] : known_flags(options)) names.push_back(name);
    return names;
}

ParsedWords parse_arguments(cxxopts::Options& options, int argc, char** argv, const std::string& help) {
    const KnownFlags known = known_flags(options);
    std::vector<std::string> unmatched;
    ParsedWords parsed = parse_words(options, split_arguments(options, known, {argv, argv + argc}, help, unmatched));
    parsed.unmatched.insert(parsed.unmatched.begin(), unmatched.begin(), unmatched.end());
    for (const auto& [flag, of] : known) {
        const std::string name = of.name.substr(2);
        if (of.is_list || parsed.given.count(name) < 2) continue;
        std::string values;
        for (const auto& argument : parsed.given.arguments())
            if (argument.key() == name) values += (values.empty() ? "" : ", ") + in_quotes(argument.value());
        fail(of.name, "given more than once: " + values, "it once", "remove the others");
    }
    return parsed;
}

}  // namespace llmc
