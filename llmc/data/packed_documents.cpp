// packed_documents.cpp - counts the documents of a shard
#include "llmc/data/packed_documents.h"

#include <algorithm>

#include "kernels/documents.h"

namespace llmc {

PackedDocuments count_documents(const Shard& shard, int seq_len) {
    const int end_of_text = shard.vocabulary().end_of_text;
    const auto ids = shard.read(0, std::min(shard.tokens(), std::int64_t(1) << 24));
    PackedDocuments counts{.tokens = std::int64_t(ids.size())};
    for (std::int64_t first = 0, size; first < counts.tokens; first += size, ++counts.rows) {
        size = std::min<std::int64_t>(seq_len, counts.tokens - first);
        const std::vector<int> row(ids.begin() + first, ids.begin() + first + size);
        const std::vector<int> starts = kernels::document_starts(row, seq_len, end_of_text);
        for (int t = 0; t < int(size); ++t) {
            const int keys = t - starts[std::size_t(t)] + 1;
            counts.ends_of_text += row[std::size_t(t)] == end_of_text;
            counts.parts += keys == 1;
            counts.longest = std::max<std::int64_t>(counts.longest, keys);
            counts.pairs += keys;
        }
        counts.all_pairs += size * (size + 1) / 2;
    }
    return counts;
}

}  // namespace llmc
