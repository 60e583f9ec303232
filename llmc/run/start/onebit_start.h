// onebit_start.h - what the start of a run with 1-bit Adam adds: settings, checks of a resumed run, a note and its
// report. Without 1-bit Adam all but onebit_settings() do nothing and return nothing
#pragma once
#include <span>
#include <string>

#include "llmc/run/start/startup_report.h"

namespace llmc {

// `nodes`: nodes_of() all ranks, for --onebit-hierarchical only.
OnebitSettings onebit_settings(const Options& options, std::int64_t warmup_steps, std::span<const int> nodes);
// Of the checkpoint; 0: not yet.
std::int64_t onebit_frozen_after(const Resumption& resumption);
// Throws Error for options that the checkpoint excludes.
void check_onebit_resumption(const RunPlan& plan, const Options& options, const Resumption& resumption);
// A freeze that is too early.
std::string note_on_onebit_freeze(const RunPlan& plan);

// Why nothing will be compressed, or how much a rank sends.
StartupItem onebit_exchange_item(const RunPlan& plan);
// The measured cost of compression, and the link bandwidth below which it is faster; empty if nothing will
// be compressed. Every rank calls it.
StartupItem onebit_compression_item(const RunPlan& plan, Context& context);

}  // namespace llmc
