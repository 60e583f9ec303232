// rank_agreement.h - small things that the hosts of all ranks must agree on, over the control plane. Every rank calls each of these; one alone does nothing
#pragma once
#include <functional>

#include "llmc/communicator.h"

namespace llmc {

// The sum over ranks, in their order.
double sum_over_ranks(Communicator& communicator, double value);

// Tells arrays apart, bit for bit.
std::string fingerprint(std::span<const float> values);

// Rank 0 works while the others wait for it. What it throws leaves on every rank: there as it was, elsewhere as a run-time Error with its text. The work
// must not call the communicator.
void on_first_rank(Communicator& communicator, const std::function<void()>& work);

}  // namespace llmc
