// command_line.h - what the command line asks for
#pragma once
#include "llmc/run/options/run_settings.h"

namespace llmc {

enum class Request { run, help, version, print_config };

// The defaults, then the file of --config, then the flags.
struct CommandLine {
    Request request = Request::run;
    RunSettings settings{};
    std::set<std::string> given{};  // long names without dashes of what a flag or the file of --config sets

    bool resumes() const { return settings.checkpoints.resumes(); }
};
// Throws Error that names the flag, the value, what was expected and how to fix it. With --resume, whether the options
// can be combined is not checked: continued() adds those of the checkpoint first.
CommandLine parse(int argc, char** argv);
// The command line of a run that continues another: what is not given now is as in `before`, by long name as in
// to_json(). Names that this version does not know are left out. Throws Error that names `file`, where `before` is.
CommandLine continued(const CommandLine& now, const nlohmann::json& before, const std::string& file);
// Wrapped to the width of the terminal.
std::string help_text();

}  // namespace llmc
