// tool_main.h - main() of a tool with options: parses them, prints errors and sets the exit code
#pragma once
#include <exception>
#include <iostream>
#include <string>
#include <vector>

#include "kernels/base/error.h"
#include "llmc/base/did_you_mean.h"
#include "llmc/base/process_start.h"
#include "llmc/base/standard_streams.h"
#include "llmc/base/terminal.h"
#include "llmc/run/options/arguments.h"

// Calls run() with the parsed options. Exit codes: 0 done, or --help; 2 wrong arguments or input; 1 failed later.
// Prints errors to stderr after the tool's name. --help lists the options of `groups` in their order.
template <class Run>
int tool_main(const std::string& name, cxxopts::Options options, int argc, char** argv, Run&& run,
              const std::vector<std::string>& groups = {""}) {
    const auto report = [&](const std::string& why) { std::cerr << name << ": error: " << why << '\n'; };
    llmc::secure_standard_streams();
    llmc::ignore_signals_again();
    try {
        llmc::set_help_width(options, llmc::terminal_columns());
        const auto [given, unmatched] = llmc::parse_arguments(options, argc, argv);
        if (given.count("help")) {
            llmc::print_stdout(options.help(groups) + '\n');
            return 0;
        }
        if (!unmatched.empty())
            llmc::refuse_argument(unmatched.front(), llmc::flag_names(options), name + " --help");
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
