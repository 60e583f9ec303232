// collective_results.h - what collectives compute, by the contract of communicator.h: on the host, for ranks whose
// inputs lie side by side; sums are made in rank order, in float (double in double), and rounded once
#pragma once
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "llmc/comm/communicator.h"

namespace llmc {

using Bytes = std::vector<std::byte>;

// What ranks must agree on: the same text, the same collective.
std::string name_of(const Collective& op);

// What a rank reads and writes: its shard of the whole, or the whole; the root of a broadcast writes nothing.
std::int64_t in_bytes(const Collective& op, int rank, int ranks);
std::int64_t out_bytes(const Collective& op, int rank, int ranks);

// By rank, out_bytes() of each, from in_bytes() of each. An all_to_all has as many elements for every rank.
std::vector<Bytes> results_of(const Collective& op, const std::vector<Bytes>& inputs);

// All ranks' values, each as the bytes of an array as long as `values`, reduced to `values` element by element.
void reduce_on_host(std::span<std::int64_t> values, const std::vector<std::string>& all, HostReduction reduction);

}  // namespace llmc
