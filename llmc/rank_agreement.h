// rank_agreement.h - what is small enough for the hosts of all ranks to sum and compare over the control plane
#pragma once
#include "llmc/communicator.h"

namespace llmc {

// The sum over ranks, in their order. Every rank calls it.
double sum_over_ranks(Communicator& communicator, double value);

// Tells arrays apart, bit for bit.
std::string fingerprint(std::span<const float> values);

}  // namespace llmc
