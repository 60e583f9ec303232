// collective_results.h - the results of collectives according to the contract of communicator.h, computed on the host
// from the inputs of all ranks; sums are in rank order, in float, and rounded once
#pragma once
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "llmc/comm/communicator.h"

namespace llmc {

using Bytes = std::vector<std::byte>;

// Identifies a collective: ranks that call the same one get the same text.
std::string name_of(const Collective& op);

// Bytes that a rank reads and writes: its shard or the whole array; the root of a broadcast and the others of a
// reduce write nothing.
std::int64_t in_bytes(const Collective& op, int rank, int ranks);
std::int64_t out_bytes(const Collective& op, int rank, int ranks);

// Each rank's output of out_bytes() from all ranks' inputs of in_bytes(). An all_to_all sends the same number of
// elements to every rank.
std::vector<Bytes> results_of(const Collective& op, const std::vector<Bytes>& inputs);

// Reduces all ranks' arrays, given as bytes and as long as `values`, into `values`, element by element.
void reduce_on_host(std::span<std::int64_t> values, const std::vector<std::string>& all, HostReduction reduction);

}  // namespace llmc
