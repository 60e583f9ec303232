// hellaswag_batches.h - the contexts of HellaSwag with each of their endings, as rows of micro-batches
//
// Row 4 i + e is the context of example i and its ending e. Its targets are the tokens of the ending; the others, and
// what fills the row up, have target kernels::kIgnoreTarget. Rows of like length share a batch, whose length is a
// multiple of 64, at most seq_len. A context that is too long for seq_len loses tokens at its start. The batches follow
// from the file, the micro-batch and seq_len alone, so ranks that share them out, however many, compute the same.
#pragma once
#include <cstdint>
#include <vector>

#include "llmc/data/hellaswag_file.h"

namespace llmc {

class HellaSwagBatches {
public:
    // Batches of at most micro_batch * seq_len positions. Throws Error where an ending has more than seq_len tokens.
    HellaSwagBatches(HellaSwagFile file, int micro_batch, int seq_len);

    const HellaSwagFile& file() const { return file_; }
    std::int64_t rows() const { return std::int64_t(order_.size()); }  // 4 of every example
    std::int64_t cut_contexts() const { return cut_contexts_; }

    struct RowBatch {
        std::span<const std::int64_t> rows;         // their numbers
        int seq_len = 0;
        std::vector<std::int32_t> inputs, targets;  // (rows, seq_len)
    };
    std::int64_t size() const { return std::int64_t(batches_.size()); }  // batches, of all ranks together
    std::span<const std::int64_t> rows_of(std::int64_t j) const;
    RowBatch operator[](std::int64_t j) const;

private:
    struct Extent {
        std::size_t first, count;  // of `order_`
        int seq_len;
    };
    HellaSwagFile file_;
    int seq_len_;
    std::vector<std::int64_t> order_;  // rows, the short ones first
    std::vector<Extent> batches_;
    std::int64_t cut_contexts_ = 0;
};

}  // namespace llmc
