// onebit_report.h - what a run with 1-bit Adam reports before its first step: when compression starts, how much a rank
// then sends, and whether that is faster
#pragma once
#include "llmc/run/start/startup_report.h"

namespace llmc {

// Known before anything is allocated; empty with another optimizer.
StartupItem exchange_item(const RunPlan& plan, const Communicator& ranks);
// The measured cost of compression, and the link bandwidth below which it is faster; empty if nothing will be
// compressed. Every rank calls it.
StartupItem compression_item(const RunPlan& plan, Context& context);

}  // namespace llmc
