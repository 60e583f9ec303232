// advice.h - what a run could do better, for --dry-run and for the default model
#pragma once
#include <cstdint>
#include <string>

#include "llmc/run/start/run_plan.h"

namespace llmc {

// "" unless --init is the default model, and that is far too large for the text.
std::string note_on_default_model(const RunPlan& plan, const RunData& data);

// "" unless the run reads its text more often than helps without validations that stop it.
std::string note_on_passes(const RunPlan& plan, const RunData& data);

// For --dry-run: batch, learning rate and number of steps of published runs beside those given, each with its reason,
// and how often the run reads its data. Empty with --eval-only. `largest_micro_batch`: that fits the memory plan, 0:
// none.
std::string advice_text(const RunPlan& plan, const RunData& data, std::int64_t largest_micro_batch);

}  // namespace llmc
