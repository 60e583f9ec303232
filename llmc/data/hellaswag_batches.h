// hellaswag_batches.h - the contexts of HellaSwag with each of their endings, as rows of micro-batches
//
// Row 4 i + e is the context of example i followed by its ending e. Its targets are the tokens of the ending; all other
// positions, and the padding, have target kernels::kIgnoreTarget. Rows of similar length share a batch, whose length is
// a multiple of 64, at most seq_len. A context that is too long for seq_len is truncated at its start. The batches
// depend only on the file, the micro-batch and seq_len, so any number of ranks that divide them compute the same.
#pragma once
#include <cstdint>
#include <vector>

#include "llmc/data/hellaswag_file.h"

namespace llmc {

class HellaSwagBatches {
public:
    // Batches of at most micro_batch * seq_len positions. The file must outlive them. Throws Error if an ending has
    // more than seq_len tokens.
    HellaSwagBatches(const HellaSwagFile& file, int micro_batch, int seq_len);

    const HellaSwagFile& file() const { return file_; }
    std::int64_t rows() const { return std::int64_t(order_.size()); }  // 4 per example
    std::int64_t truncated_contexts() const { return cut_contexts_; }

    struct RowBatch {
        std::span<const std::int64_t> rows;         // row numbers
        int seq_len = 0;
        std::vector<std::int32_t> inputs, targets;  // (rows, seq_len)
    };
    std::int64_t size() const { return std::int64_t(batches_.size()); }  // batches, of all ranks together
    std::span<const std::int64_t> rows_of(std::int64_t j) const;
    RowBatch operator[](std::int64_t j) const;

private:
    struct Extent {
        std::size_t first, count;  // elements of `order_`
        int seq_len;
    };
    const HellaSwagFile& file_;
    int seq_len_;
    std::vector<std::int64_t> order_;  // row numbers, short rows first
    std::vector<Extent> batches_;
    std::int64_t cut_contexts_ = 0;
};

}  // namespace llmc
