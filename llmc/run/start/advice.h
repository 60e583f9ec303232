// advice.h - for --dry-run: batch, learning rate and number of steps of published runs beside those given, each with
// its reason, and how often the run reads its data
#pragma once
#include <string>

#include "llmc/run/start/run_plan.h"

namespace llmc {

// Lines for the terminal; empty with --eval-only. `largest_micro_batch`: that fits the memory plan, 0: none.
std::string advice_text(const RunPlan& plan, const RunData& data, std::int64_t largest_micro_batch,
                        const Options& options);

}  // namespace llmc
