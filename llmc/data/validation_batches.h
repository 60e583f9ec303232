// validation_batches.h - a part of the validation data, independent of the number of ranks and the batch size
//
// Every shard is divided into rows of seq_len inputs and their targets; the last row of a shard may be shorter. Rows
// are numbered through all shards. If the data have more than `tokens` targets, as many rows are used as have these, at
// equal distances over all shards, or the first rows; the last one is truncated to `tokens` targets in all. Targets
// at the first token of a document count, also if they are masked. Batch j of rank r has the used rows from
// (j * world + r) * micro_batch. Positions without a target have input 0 and target kernels::kIgnoreTarget: under
// causal attention they change nothing. So the sum of losses and the number of targets over all batches and ranks
// depend only on the data, `tokens`, seq_len and the mask.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "llmc/data/batch.h"
#include "llmc/data/shard_set.h"

namespace llmc {

class ValidationBatches {
public:
    // `shards` must outlive the batches. Throws Error if `tokens` < 1 or there is no target. With a mask
    // (ignore_document_starts()) it reads all tokens to count the targets.
    ValidationBatches(std::span<const Shard> shards, std::int64_t tokens, const BatchShape& shape,
                      bool mask_document_start = false, bool spread = true);

    std::int64_t size() const { return batches_; }     // batches per rank
    std::int64_t targets() const { return targets_; }  // of all batches of all ranks
    // Targets that are read, and that the data have; masked ones included.
    std::int64_t taken() const { return taken_; }
    std::int64_t available() const { return available_; }

    // The total number of bytes of all targets of all ranks, given the number of bytes of each id. Reads the shards.
    // Throws a run-time Error for an id outside the vocabulary, and if a shard was truncated.
    std::int64_t target_bytes(std::span<const std::uint16_t> bytes_of_id) const;

    // Batch 0 <= j < size() of this rank, valid until the next call. Throws a run-time Error for an id outside the
    // vocabulary.
    const Batch& operator[](std::int64_t j);

private:
    struct Place {
        const Shard& shard;
        std::int64_t first, targets;  // of the row, in the shard
    };
    Place place_of(std::int64_t row) const;  // of the rows that are used
    // Calls use(id) for every target of all ranks.
    template <class Use> void for_targets(Use&& use) const;
    void fill_row(std::int64_t row, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) const;

    std::span<const Shard> shards_;
    BatchShape shape_;
    bool mask_document_start_;
    RowNumbers rows_;
    std::int64_t taken_ = 0, available_ = 0, targets_ = 0;
    std::int64_t spread_rows_ = 0, rows_used_ = 0, last_row_targets_ = 0, batches_ = 0;
    Batch batch_;
};

// The shards of one pattern, which have a loss of their own.
struct ValidationSet {
    std::string pattern;
    double weight;  // of each target in the mean over all sets
    ValidationBatches batches;
};

// The sets of all patterns, in their order. If together they have more targets than `tokens`, each has a share of whole
// rows, at least one: in proportion to its targets, or to its weight, which is its share of the mean, too. `weights`:
// one for each set; empty: every target has the same weight in the mean. Otherwise as ValidationBatches.
std::vector<ValidationSet> validation_sets(const ShardSet& shards, const std::vector<std::int64_t>& weights,
                                           std::int64_t tokens, const BatchShape& shape, bool mask_document_start,
                                           bool spread);

}  // namespace llmc
