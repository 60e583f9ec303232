// tool_main.h - main() of a tool with options: parses them, prints errors and sets the exit code
#pragma once
#include <algorithm>
#include <exception>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include "kernels/base/error.h"
#include "llmc/base/cxxopts_versions.h"
#include "llmc/base/did_you_mean.h"
#include "llmc/base/ignored_signals.h"
#include "llmc/base/standard_streams.h"
#include "llmc/base/terminal.h"
#include "llmc/base/value_text.h"
#include "llmc/run/options/llmc_flags.h"

// Splits --flag=value into two words, and joins a switch and its value, as train_gpt2 does: cxxopts refuses a joined
// value of several lines, and knows only true and false.
inline std::vector<std::string> values_apart(const cxxopts::Options& options, int argc, char** argv) {
    std::map<std::string, bool> takes_value;  // by flag
    for (const std::string& group : options.groups())
        for (const auto& option : options.group_help(group).options) {
            if (!option.s.empty()) takes_value['-' + option.s] = !option.is_boolean;
            for (const std::string& flag : llmc::long_names(option)) takes_value["--" + flag] = !option.is_boolean;
        }
    std::vector<std::string> words{argv, argv + std::min(argc, 1)};
    for (int i = 1; i < argc; ++i) {
        const std::string word = argv[i];
        if (word == "--") return words.insert(words.end(), argv + i, argv + argc), words;
        const auto equals = word.find('=');
        const auto flag = takes_value.find(word.substr(0, equals)), one_letter = takes_value.find(word.substr(0, 2));
        if (flag == takes_value.end() && one_letter != takes_value.end() && one_letter->second) {  // -ofolder
            words.insert(words.end(), {one_letter->first, word.substr(2)});
            continue;
        }
        const std::string next = i + 1 < argc ? argv[i + 1] : "";
        if (flag == takes_value.end() || !flag->second) {
            const bool is_switch = flag != takes_value.end();
            if (is_switch && equals != word.npos)
                words.push_back(llmc::switch_with_value(flag->first, word.substr(equals + 1)));
            else if (is_switch && llmc::switch_value(next)) words.push_back(llmc::switch_with_value(word, argv[++i]));
            else words.push_back(word);
            continue;
        }
        words.push_back(flag->first);
        if (equals != word.npos) words.push_back(word.substr(equals + 1));
        else if (takes_value.contains(next.substr(0, next.find('=')))) llmc::refuse_flag_as_value(flag->first, next);
        else if (i + 1 < argc) words.emplace_back(argv[++i]);
    }
    return words;
}

// Calls run() with the parsed options. Exit codes: 0 done, or --help; 2 wrong arguments or input; 1 failed later.
// Prints errors to stderr after the tool's name. --help lists the options of `groups` in their order.
template <class Run>
int tool_main(const std::string& name, cxxopts::Options options, int argc, char** argv, Run&& run,
              const std::vector<std::string>& groups = {""}) {
    const auto report = [&](const std::string& why) { std::cerr << name << ": error: " << why << '\n'; };
    llmc::secure_standard_streams();
    llmc::ignore_signals_again();
    try {
        options.allow_unrecognised_options();
        llmc::set_help_width(options, llmc::terminal_columns());
        const std::vector<std::string> words = values_apart(options, argc, argv);
        const auto [given, unmatched] = llmc::parse_words(options, words);
        if (given.count("help")) {
            llmc::print_stdout(options.help(groups) + '\n');
            return 0;
        }
        if (!unmatched.empty()) {
            std::vector<std::string> flags;
            for (const std::string& group : options.groups())
                for (const auto& option : options.group_help(group).options)
                    for (const std::string& flag : llmc::long_names(option)) flags.push_back("--" + flag);
            llmc::refuse_foreign_flag(unmatched.front(), flags);
            llmc::refuse_argument(unmatched.front(), flags, name + " --help");
        }
        run(given);
        return 0;
    } catch (const base::Error& error) {
        report(error.what());
        return error.blame() == base::Blame::input ? 2 : 1;
    } catch (const llmc::CxxoptsError& error) {
        report(std::string(error.what()) + "; see " + name + " --help");
        return 2;
    } catch (const std::exception& error) {
        report(base::message_of(error));
        return 1;
    }
}
