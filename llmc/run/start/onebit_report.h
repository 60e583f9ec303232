// onebit_facts.h - what a run with 1-bit Adam tells of its exchange before its first step: from when on it compresses,
// what travels then, and whether that pays
#pragma once
#include "llmc/run/run_facts.h"

namespace llmc {

// Known before anything is allocated; nothing with another optimizer.
RunFact fact_of_exchange(const Plan& plan, const Communicator& ranks);
// What compression costs here, measured, and the link below which it pays; nothing where nothing will be compressed.
// Every rank calls it.
RunFact fact_of_compression(const Plan& plan, Context& context);

}  // namespace llmc
