// arguments.h - the words of a command line as cxxopts needs them, for train_gpt2 and the tools of dev/
#pragma once
#include <string>
#include <vector>

namespace cxxopts {
class Options;
}

namespace llmc {

// The long names of all flags, with their dashes.
std::vector<std::string> flag_names(const cxxopts::Options& options);

// "--flag=value" as two words, because a joined value must not contain newlines there; the value of a switch joined to
// it; and the flags of -fl3e-4 apart, all by their long names. `help`: the command that lists them, if there is nothing
// but flags: then "--" is refused, and so is llm.c's -h with a value. Throws Error for a flag of another program that
// has another name here, and for a flag without its value, or with another flag in its place.
std::vector<std::string> split_arguments(const cxxopts::Options& options, int argc, char** argv,
                                         const std::string& help = {});

}  // namespace llmc
