// arguments.cpp - splits and joins flags and their values
#include "llmc/run/options/arguments.h"

#include <algorithm>
#include <map>

#include "llmc/base/did_you_mean.h"
#include "llmc/base/value_text.h"
#include "llmc/run/options/llmc_flags.h"

namespace llmc {
namespace {

// A flag's long name ("--lr" for "-l" too), and whether it is a switch, without a value, or takes several.
struct KnownFlag {
    std::string name;
    bool is_switch, is_list;
};
using KnownFlags = std::map<std::string, KnownFlag>;

KnownFlags known_flags(const cxxopts::Options& options) {
    KnownFlags known;
    for (const std::string& group : options.groups())
        for (const auto& option : options.group_help(group).options)
            for (const std::string& name : long_names(option)) {
                known["--" + name] = {"--" + name, option.is_boolean, option.is_container};
                if (!option.s.empty()) known['-' + option.s] = known["--" + name];
            }
    return known;
}

// -fl3e-4: switches of one letter, and a flag, whose value may be the next word. The word itself if it is anything
// else.
std::vector<std::string> flags_of_letters(const std::string& word, const KnownFlags& known) {
    std::vector<std::string> flags;
    for (std::size_t i = 1; i < word.size(); ++i) {
        const auto flag = known.find(std::string("-") + word[i]);
        if (word[0] != '-' || flag == known.end()) return {word};
        flags.push_back(flag->second.name);
        if (flag->second.is_switch) continue;
        if (i + 1 < word.size()) flags.push_back(word.substr(i + 1));
        return flags;
    }
    return flags.empty() ? std::vector{word} : flags;
}

// The words as cxxopts needs them: a joined value must not contain newlines there, and that of a switch must be joined.
// Those that are not known are appended to `unmatched`.
std::vector<std::string> split_arguments(const cxxopts::Options& options, const KnownFlags& known, int argc,
                                         char** argv, const std::string& help, std::vector<std::string>& unmatched) {
    std::vector<std::string> words{argv, argv + std::min(argc, 1)};
    for (int i = 1; i < argc; ++i) {
        const std::string word = argv[i], next = i + 1 < argc ? argv[i + 1] : "";
        if (word == "--") {
            if (!help.empty()) refuse_argument(word, flag_names(options), help);
            words.insert(words.end(), argv + i, argv + argc);
            return words;
        }
        if (!help.empty() && word == "-h" && (next == "0" || next == "1"))
            refuse_foreign_flag("-h " + next, flag_names(options));
        const auto equals = word.find('=');
        const auto flag = known.find(word.substr(0, equals));
        if (flag == known.end()) {
            refuse_foreign_flag(word, flag_names(options));
            const std::vector<std::string> letters = flags_of_letters(word, known);
            const bool is_known = known.contains(letters[0]) || (help.empty() && (word == "-" || word[0] != '-'));
            auto& to = is_known ? words : unmatched;
            to.insert(to.end(), letters.begin(), letters.end());
            const auto last = known.find(letters.back());
            if (last != known.end() && !last->second.is_switch && i + 1 < argc) words.emplace_back(argv[++i]);
            continue;
        }
        const auto& [name, is_switch, is_list] = flag->second;
        if (is_switch && equals != word.npos) words.push_back(switch_with_value(name, word.substr(equals + 1)));
        else if (is_switch && switch_value(next)) words.push_back(switch_with_value(name, argv[++i]));
        else words.push_back(name);
        if (is_switch) continue;
        if (equals != word.npos) words.push_back(word.substr(equals + 1));
        else if (known.contains(next.substr(0, next.find('=')))) refuse_flag_as_value(name, next);
        else if (i + 1 < argc) words.emplace_back(argv[++i]);
        else fail(name, "without a value", "its value after it", "see --help");
        while (is_list && i + 1 < argc && argv[i + 1][0] != '-') words.insert(words.end(), {name, argv[++i]});
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
    ParsedWords parsed = parse_words(options, split_arguments(options, known, argc, argv, help, unmatched));
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
