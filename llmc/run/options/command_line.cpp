// command_line.cpp - the parser and --help, made from the table of flags
#include "llmc/run/options/command_line.h"

#include <map>
#include <nlohmann/json.hpp>

#include "kernels/base/error.h"
#include "llmc/base/did_you_mean.h"
#include "llmc/base/input_file.h"
#include "llmc/base/json_text.h"
#include "llmc/base/names.h"
#include "llmc/base/terminal.h"
#include "llmc/run/options/arguments.h"
#include "llmc/run/options/llmc_flags.h"

namespace llmc {
namespace {

struct Setting {
    std::string what;                 // "--lr", or "FILE: lr", for messages
    std::vector<std::string> values;  // as on a command line
};
using GivenOptions = std::map<std::string, Setting>;  // by long name without dashes

// The file of --config: a JSON object with // comments, { "init": "d12", "max-steps": 18865, "lr": 6e-4 }. Throws Error
// for a file that cannot be read or is not such an object, and for a name that is no option, with the nearest one.
// Values are checked where they are set.
GivenOptions read_config(const std::string& file) {
    const nlohmann::json object =
        parse_json_object(file, read_text(file, "the file of --config"),
                          "write option names and values, such as {\"lr\": 6e-4}; --print-config prints such a file",
                          Comments::allowed);
    const nlohmann::json known = to_json(RunSettings());
    std::vector<std::string> names, flags;
    for (const auto& [name, value] : known.items()) {
        names.push_back(name);
        flags.push_back("--" + name);
    }
    GivenOptions settings;
    for (const auto& [key, value] : object.items()) {
        if (!known.contains(key)) {
            const std::string name = file + ": the name " + in_quotes(key);
            if (auto foreign = foreign_option(key, flags)) {
                if (foreign->ours.starts_with("--")) foreign->ours.erase(0, 2);  // as names are written in the file
                foreign->refuse(name);
            }
            for (const char* const word : {"config", "print-config", "help", "version"})
                require(key != word, name, "no option of a run", "the long name of another flag", "remove it");
            fail(name, "unknown", "the long name of a flag in train_gpt2 --help", did_you_mean(key, names));
        }
        const std::string what = file + ": " + key;
        settings[key] = {what, values_of_setting(what, value)};
    }
    return settings;
}

// Resets flags of earlier sources that what this one sets (its long names) replaces (Quantity) or leaves without effect
// (Needs). Throws Error if it sets a quantity in two units.
template <class Set>
void replace_others(RunSettings& settings, const Set& set) {
    RunSettings defaults = all_decided({});
    const OptionList table = option_table(settings), table_of_defaults = option_table(defaults);
    const std::vector<Option> &options = table.options, &of_defaults = table_of_defaults.options;
    const auto is_unset = [&](std::size_t i) {
        const std::string value = options[i].values().front();
        return value.empty() || value == "0" || value == "auto";
    };
    const auto reset = [&](std::size_t i) {
        options[i].set("the default", of_defaults[i].values());
        if (options[i].decided) options[i].decided->erase(options[i].name());
    };
    const auto sets = [&](std::size_t i) { return set.contains(options[i].name()); };
    std::map<std::string, std::map<std::string, std::size_t>> units;  // by quantity and flag
    for (std::size_t i = 0; i < options.size(); ++i) {
        const Option& option = options[i];
        if (!option.quantity.name.empty()) units[option.quantity.name].emplace("--" + option.name(), i);
        if (!sets(i) && set.contains(option.needs.name) && !table.is_met(option.needs)) reset(i);
    }
    for (const auto& [quantity, flags] : units)
        for (const auto& [flag, i] : flags) {
            if (is_unset(i) || !sets(i)) continue;
            const std::string value = options[i].is_text() ? "" : ' ' + options[i].values().front();
            for (const auto& [other, at] : flags) {
                if (at == i || is_unset(at)) continue;
                require(!sets(at), other, options[at].values().front(), "none with " + flag + value,
                        "remove one of them");
                reset(at);
            }
        }
}

// Sets the options of one source, which override those of earlier ones.
void set_all(CommandLine& line, const GivenOptions& source) {
    for (const Option& option : option_table(line.settings).options) {
        const auto setting = source.find(option.name());
        if (setting == source.end()) continue;
        const auto& [key, value] = *setting;
        for (const std::string& text : value.values) refuse_foreign_value("--" + key, value.what, text);
        option.set(value.what, value.values);
        line.given.insert(key);
    }
    replace_others(line.settings, source);
}

void check_resume(const CommandLine& line) {
    const std::string& from = line.settings.checkpoints.resume;
    if (!line.resumes()) return;
    require(!line.settings.eval_only, "--resume", '"' + from + "\" with --eval-only",
            "no --resume, as nothing is trained", "set --init to the checkpoint's folder");
    require(!line.settings.checkpoints.output_dir.empty(), "--resume", '"' + from + "\" without --output-dir",
            "--output-dir with the folder of the run");
}

// The start of --help.
constexpr const char* kExamples =
    "Pretrains GPT-2 from shards of tokens.\n\n"
    "  train_gpt2 -i 'data/bible/bible_train_*.bin' -j 'data/bible/bible_val_*.bin' --max-minutes 10 \\\n"
    "      -o runs/small                                              trains for 10 minutes, and saves the model\n"
    "  train_gpt2 ... --dry-run                                       prints what it would choose, time and memory\n"
    "  train_gpt2 -o runs/small -y auto                               resumes that run, with its options\n"
    "  mpirun -np 8 --bind-to none train_gpt2 --config configs/gpt2-124M.json    GPT-2 124M on 8 GPUs\n\n"
    "auto: the run chooses the value for its text, its length and this machine, and prints it with the reason.\n"
    "Whole numbers may be written as 64k (64000), 0.5M, 7e9 or 1B.\n"
    "Flags without a value are switches, off unless their default is on; --NAME=off turns one off.\n";

struct Parser {
    cxxopts::Options options;
    std::vector<std::string> groups;  // in the order of --help
};

Parser parser() {
    RunSettings defaults;
    Parser line{cxxopts::Options("train_gpt2", kExamples), {}};
    set_help_width(line.options, terminal_columns());
    for (const Option& option : option_table(defaults).options) {
        if (line.groups.empty() || line.groups.back() != option.group) line.groups.emplace_back(option.group);
        const std::string otherwise = option.values().front();
        if (option.is_switch() && option.decided) {
            line.options.add_options(option.group)(
                option.flag, option.help, cxxopts::value<std::string>()->implicit_value("on")->default_value(otherwise),
                otherwise);
            continue;
        }
        if (option.is_switch()) {
            line.options.add_options(option.group)(
                option.flag, option.help + (otherwise == "off" ? "" : " (default: " + otherwise + ')'));
            continue;
        }
        const auto* const choice = std::get_if<Choice>(&option.field);
        if (option.is_list()) {
            line.options.add_options(option.group)(option.flag, option.help, cxxopts::value<std::vector<std::string>>(),
                                                   "GLOB...");
            continue;
        }
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
        GivenOptions flags;
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
    if (!line.resumes()) check_together(line.settings, line.given);
    return line;
}

CommandLine continued(const CommandLine& now, const nlohmann::json& before, const std::string& file) {
    CommandLine line{.given = now.given};
    RunSettings given = now.settings;
    const OptionList table = option_table(line.settings), table_of_given = option_table(given);
    for (std::size_t i = 0; i < table.options.size(); ++i) {
        const Option& option = table.options[i];
        const std::string key = option.name();
        const Option& now_given = table_of_given.options[i];
        const bool is_given = now.given.contains(key) && (!now_given.is_left_to_run() || now_given.has_auto_value());
        if (is_given || option.resume == OnResume::of_one_start)
            option.set("--" + key, now_given.values());
        else
            option.take(before, file);
    }
    replace_others(line.settings, now.given);
    line.settings = all_decided(line.settings);  // by the start of the run
    return line;
}

std::string help_text() {
    const Parser all = parser();
    return all.options.help(all.groups);
}

}  // namespace llmc
