// option_checks.h - checks which options can be combined
#pragma once
#include "llmc/run/options/options.h"

namespace llmc {

// Both throw Error that names the flag, what was found, what was expected and how to fix it.
// What --resume needs.
void check_resume(const CommandLine& line);
// All options of a run: a resumed one has those of its checkpoint, too.
void check_together(const CommandLine& line);

}  // namespace llmc
