// option_checks.h - checks which options can be combined
#pragma once
#include "llmc/run/options/options.h"

namespace llmc {

// Throws Error that names the flag, what was found, what was expected and how to fix it.
void check_together(const Options& options);

}  // namespace llmc
