// batch.h - what one rank is trained on or tested with in one micro-step, and how it is cut from shards
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "llmc/data/shard_set.h"

namespace llmc {

struct BatchShape {
    int micro_batch = 1, seq_len = 1;  // rows of one rank, tokens of a row
    int rank = 0, world = 1;

    std::int64_t positions() const { return std::int64_t(micro_batch) * seq_len; }  // of one rank
    std::int64_t global_rows() const { return std::int64_t(micro_batch) * world; }  // of all ranks
    std::int64_t global_positions() const { return positions() * world; }
};

// Throws Error for sizes below 1, more than 2^31 - 1 positions a rank, and a rank outside [0, world).
void check(const BatchShape& shape);

// Where reading goes on, the same on every rank: the row that rank 0 reads next, counted in the order of its epoch.
struct LoaderPosition {
    std::int64_t epoch = 0, row = 0;
    bool operator==(const LoaderPosition&) const = default;
};

struct Batch {
    // (micro_batch, seq_len); targets lie one token further, or are kernels::kIgnoreTarget
    std::vector<std::int32_t> inputs, targets;
    std::int64_t valid_targets = 0;             // those that are not ignored
    LoaderPosition from;                        // of the rows of all ranks together; unused in validation

    Batch() = default;
    explicit Batch(const BatchShape& shape) : inputs(std::size_t(shape.positions())), targets(inputs.size()) {}
};

// inputs[i] = tokens[i], targets[i] = tokens[i + 1] for every i of inputs; `tokens` is one longer.
void split_inputs_and_targets(std::span<const std::uint16_t> tokens, std::span<std::int32_t> inputs,
                              std::span<std::int32_t> targets);

// One row of `shard`, or several that follow one another, from token `first` on: `valid` positions, then padding: input
// 0, target kernels::kIgnoreTarget. Under causal attention padding at the end of a row changes nothing. Throws a
// run-time Error for an id outside the vocabulary, and where the shard was cut off.
void fill_rows(const Shard& shard, std::int64_t first, std::int64_t valid, std::span<std::int32_t> inputs,
               std::span<std::int32_t> targets);

// The first token of a document, whose only context is the end of text before it, is no target any more.
void ignore_document_starts(Batch& batch, std::int32_t end_of_text);

void count_valid_targets(Batch& batch);

// Rows numbered through all shards: row i is number i - first(shard) of its shard.
class RowNumbers {
public:
    explicit RowNumbers(const std::vector<std::int64_t>& rows_of_shard);
    std::int64_t total() const { return first_.back(); }
    struct Place {
        std::int64_t shard, row;
        std::int64_t left;  // rows from this one to the end of the shard
    };
    Place find(std::int64_t row) const;  // 0 <= row < total()

private:
    std::vector<std::int64_t> first_;  // of every shard, then the total
};

}  // namespace llmc
