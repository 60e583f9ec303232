// option_checks.h - which options do not go with each other
#pragma once
#include "llmc/run/options.h"

namespace llmc {

// Throws Error that names the flag, what was found, what was expected and how to mend it.
void check_together(const Options& options);

}  // namespace llmc
