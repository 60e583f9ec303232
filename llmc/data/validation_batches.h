// validation_batches.h - the first tokens of the validation data, the same ones however many ranks and rows share them
//
// Every shard is cut into rows of seq_len inputs and their targets, the last row of a shard shorter; rows are numbered
// through the shards, and so many are taken, the last one cut, as have `tokens` targets together, first tokens of
// documents among them also where they are masked. Batch j of rank r holds rows (j * world + r) * micro_batch and on.
// Positions without a target have input 0 and target kernels::kIgnoreTarget: under causal attention they change
// nothing. So the sum of losses and the number of targets over all batches and ranks depend on the data, `tokens`,
// seq_len and the mask alone.
#pragma once
#include <cstdint>

#include "llmc/data/batch.h"
#include "llmc/data/shard_set.h"

namespace llmc {

class ValidationBatches {
public:
    // `shards` must outlive the batches. Throws Error if `tokens` < 1 or they have no target. With a mask, as in
    // ignore_document_starts(), all of them are read, to count the targets.
    ValidationBatches(const ShardSet& shards, std::int64_t tokens, const BatchShape& shape,
                      bool mask_document_start = false);

    std::int64_t size() const { return batches_; }         // batches of every rank
    std::int64_t targets() const { return targets_; }      // of all batches of all ranks
    bool all_there_is() const { return taken_ < asked_; }  // the data hold fewer targets than were asked for

    // Of all targets of all ranks together, where an id stands for so many bytes. Reads them. Throws a run-time Error
    // for an id outside the vocabulary, and where a shard was cut off.
    std::int64_t target_bytes(std::span<const std::uint16_t> bytes_of_id) const;

    // Batch 0 <= j < size() of this rank, valid until the next call. Throws a run-time Error for an id outside the
    // vocabulary.
    const Batch& operator[](std::int64_t j);

private:
    void fill_row(std::int64_t row, std::span<std::int32_t> inputs, std::span<std::int32_t> targets);

    const ShardSet& shards_;
    BatchShape shape_;
    bool mask_document_start_;
    RowNumbers rows_;
    std::int64_t asked_, taken_ = 0, targets_ = 0;  // `taken` with the targets that are masked
    std::int64_t rows_used_ = 0, last_row_targets_ = 0, batches_ = 0;
    Batch batch_;
};

}  // namespace llmc
