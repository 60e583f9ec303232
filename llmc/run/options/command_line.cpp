// command_line.cpp - the parser and --help, made from the table of flags
#include <map>
#include <nlohmann/json.hpp>

#include "kernels/base/error.h"
#include "llmc/base/did_you_mean.h"
#include "llmc/base/names.h"
#include "llmc/base/option.h"
#include "llmc/base/terminal.h"
#include "llmc/run/options/arguments.h"
#include "llmc/run/options/config_file.h"
#include "llmc/run/options/llmc_flags.h"
#include "llmc/run/options/option_checks.h"
#include "llmc/run/options/options.h"

namespace llmc {
namespace {

// Resets flags of earlier sources that what this one sets (its long names) replaces (Quantity) or leaves without effect
// (Needs). Throws Error if it sets a quantity in two units.
template <class Set>
void replace_others(Options& o, const Set& set) {
    Options defaults;
    const std::vector<Option> options = option_table(o), of_defaults = option_table(defaults);
    const auto is_default = [&](std::size_t i) { return values_of(options[i]) == values_of(of_defaults[i]); };
    const auto reset = [&](std::size_t i) { set_values(options[i], "the default", values_of(of_defaults[i])); };
    const auto sets = [&](std::size_t i) { return set.contains(long_name(options[i].flag).substr(2)); };
    std::map<std::string, std::map<std::string, std::size_t>> units;  // by quantity and flag
    for (std::size_t i = 0; i < options.size(); ++i) {
        const Option& option = options[i];
        if (!option.quantity.name.empty()) units[option.quantity.name].emplace(long_name(option.flag), i);
        if (!sets(i) && set.contains(option.needs.name) && !is_met(option.needs, options)) reset(i);
    }
    for (const auto& [quantity, flags] : units)
        for (const auto& [flag, i] : flags) {
            if (is_default(i) || !sets(i)) continue;
            const std::string value = options[i].is_text() ? "" : ' ' + values_of(options[i]).front();
            for (const auto& [other, at] : flags) {
                if (at == i || is_default(at)) continue;
                require(!sets(at), other, values_of(options[at]).front(), "none with " + flag + value,
                        "remove one of them");
                reset(at);
            }
        }
}

// Sets the options of one source, which override those of earlier ones.
void set_all(CommandLine& line, const Settings& settings) {
    for (const Option& option : option_table(line.options)) {
        const auto setting = settings.find(long_name(option.flag).substr(2));
        if (setting == settings.end()) continue;
        const auto& [key, value] = *setting;
        for (const std::string& text : value.values) refuse_foreign_value("--" + key, text);
        set_values(option, value.what, value.values);
        line.given.insert(key);
    }
    replace_others(line.options, settings);
}

// The start of --help.
constexpr const char* kExamples =
    "Pretrains GPT-2 from shards of tokens.\n\n"
    "  train_gpt2 -i 'data/bible/bible_train_*.bin' -j 'data/bible/bible_val_*.bin' -e custom:l=4,h=4,c=128,t=128 \\\n"
    "      -b 8 -t 128 -x 2000 -l 3e-3 -u 200 -v 200 --val-tokens 32768 --log-every 50 --shuffle \\\n"
    "      -o runs/small                                              trains a small model and saves it\n"
    "  train_gpt2 ... --dry-run                                       prints options, data and memory, then exits\n"
    "  train_gpt2 -o runs/small -y auto                               resumes that run, with its options\n"
    "  mpirun -np 8 --bind-to none train_gpt2 --config configs/gpt2-124M.json    GPT-2 124M on 8 GPUs\n\n"
    "Whole numbers may be written as 64k (64000), 0.5M, 7e9 or 1B.\n"
    "Flags without a value are switches, off unless their default is on; --NAME=off turns one off.\n";

struct Parser {
    cxxopts::Options options;
    std::vector<std::string> groups;  // in the order of --help
};

Parser parser() {
    Options defaults;
    Parser line{cxxopts::Options("train_gpt2", kExamples), {}};
    set_help_width(line.options, terminal_columns());
    for (const Option& option : option_table(defaults)) {
        if (line.groups.empty() || line.groups.back() != option.group) line.groups.emplace_back(option.group);
        if (option.is_switch()) {
            line.options.add_options(option.group)(
                option.flag, option.help + std::string(values_of(option).front() == "on" ? " (default: on)" : ""));
            continue;
        }
        const auto* const choice = std::get_if<Choice>(&option.field);
        if (option.is_list()) {
            line.options.add_options(option.group)(option.flag, option.help, cxxopts::value<std::vector<std::string>>(),
                                                   "GLOB...");
            continue;
        }
        const std::string otherwise = values_of(option).front();
        auto value = cxxopts::value<std::string>();
        if (!otherwise.empty()) value = value->default_value(otherwise);
                line.options.add_options(option.group)(
            option.flag, (choice ? list_names(choice->names) + ": " : "") + option.help, value,
            choice ? "NAME" : option.is_text() ? "TEXT" : std::holds_alternative<double*>(option.field) ? "X" : "N");
    }
    line.options.add_options(line.groups.back())(
        "config", "file of options: a JSON object of long names and values, with // comments; flags override it",
        cxxopts::value<std::string>(), "FILE")(
        "print-config", "print all options as such a file, then exit")("h,help", "print this help, then exit")(
        "version", "print the version and the libraries of this build, then exit");
    return line;
}

}  // namespace

CommandLine parse(int argc, char** argv) {
    CommandLine line;
    Parser known = parser();
    constexpr const char* kHelp = "train_gpt2 --help";
    try {
        const ParsedWords parsed = parse_arguments(known.options, argc, argv, kHelp);
        const cxxopts::ParseResult& given = parsed.given;
        for (const auto& [name, request] : {std::pair("help", Request::help), {"version", Request::version}})
            if (given.count(name) && given[name].as<bool>()) return {.request = request};
        if (!parsed.unmatched.empty()) refuse_argument(parsed.unmatched.front(), flag_names(known.options), kHelp);
        if (given.count("config")) set_all(line, read_config(given["config"].as<std::string>()));
        Settings flags;
        for (const auto& argument : given.arguments()) {
            auto& [name, values] = flags[argument.key()];
            name = "--" + argument.key();
            values.push_back(argument.value());
        }
        set_all(line, flags);
        if (given.count("print-config") && given["print-config"].as<bool>()) line.request = Request::print_config;
    } catch (const CxxoptsError& error) {
        throw Error(std::string("command line: ") + error.what() + "; see --help");
    }
    check_resume(line);
    if (line.request != Request::run) return line;
    if (!line.resumes()) check_together(line);
    return line;
}

CommandLine continued(const CommandLine& now, const nlohmann::json& before, const std::string& file) {
    CommandLine line{.given = now.given};
    Options given = now.options;
    const std::vector<Option> table = option_table(line.options), table_of_given = option_table(given);
    for (std::size_t i = 0; i < table.size(); ++i) {
        const std::string key = long_name(table[i].flag).substr(2);
        if (now.given.contains(key) || table[i].resume == OnResume::of_one_start)
            set_values(table[i], "--" + key, values_of(table_of_given[i]));
        else if (before.contains(key))
            set_values(table[i], file + ": " + key, values_of_setting(file + ": " + key, before[key]));
    }
    replace_others(line.options, now.given);
    return line;
}

std::string help_text() {
    const Parser all = parser();
    return all.options.help(all.groups);
}

}  // namespace llmc
