// packed_documents.h - how documents lie in rows: what attention within them computes
#pragma once
#include <cstdint>

#include "llmc/data/shard.h"

namespace llmc {

struct PackedDocuments {
    std::int64_t tokens = 0, rows = 0;  // that were counted
    std::int64_t ends_of_text = 0;
    std::int64_t parts = 0, longest = 0;    // documents, or parts of them, within rows; tokens of the longest
    std::int64_t pairs = 0, all_pairs = 0;  // of a query and a key: within documents; within rows

    double pair_share() const { return double(pairs) / double(all_pairs); }
};

// In rows of seq_len tokens, of at most the first 2^24 tokens of the shard. Throws as Shard::read().
PackedDocuments count_documents(const Shard& shard, int seq_len);

}  // namespace llmc
