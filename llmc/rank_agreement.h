// rank_agreement.h - small things that the hosts of all ranks must agree on, over the control plane. Every rank calls each of these; one alone does nothing
#pragma once
#include "llmc/communicator.h"

namespace llmc {

// The sum over ranks, in their order.
double sum_over_ranks(Communicator& communicator, double value);

// Tells arrays apart, bit for bit.
std::string fingerprint(std::span<const float> values);

}  // namespace llmc
