// arguments.h - the words of a command line as cxxopts needs them, for train_gpt2 and the tools of dev/
#pragma once
#include <string>
#include <vector>

#include "llmc/base/cxxopts_versions.h"

namespace llmc {

// The long names of all flags, with their dashes.
std::vector<std::string> flag_names(const cxxopts::Options& options);

// The parsed command line. "--flag=value", the value after a switch, and the flags of -fl3e-4 are separated first. A
// flag of several values, a vector, takes all words up to the next flag, and may be repeated; any other is refused if
// it is given twice. `help`: the command that lists the flags, if there is nothing but flags: then "--" is refused, and
// so is llm.c's -h with a value. Throws Error for a flag of another program that has another name here, and for a flag
// without its value, or with another flag in its place; CxxoptsError for what cxxopts refuses.
ParsedWords parse_arguments(cxxopts::Options& options, int argc, char** argv, const std::string& help = {});

}  // namespace llmc
