// options_support.h - parses the command line of train_gpt2
#pragma once
#include "kernels/base/error.h"
#include "llmc/run/options/command_line.h"
#include "test/support/catch.h"
#include "test/support/scratch_folder.h"

namespace test {

inline llmc::CommandLine read(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "train_gpt2");
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    return llmc::parse(int(argv.size()), argv.data());
}

inline llmc::RunSettings parsed(const std::vector<std::string>& arguments,
                                llmc::Request expected = llmc::Request::run) {
    const llmc::CommandLine line = read(arguments);
    REQUIRE(line.request == expected);
    return line.settings;
}

inline std::string refusal(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"-i", "train"});
    return error_of([&] { parsed(arguments); }, base::Blame::input);
}

}  // namespace test
