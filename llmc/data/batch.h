// batch.h - the inputs and targets of one rank for one micro-batch, and how they are read from shards
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "llmc/data/shard_set.h"

namespace llmc {

struct BatchShape {
    int micro_batch = 1, seq_len = 1;  // rows of one rank, tokens per row
    int rank = 0, world = 1;

    std::int64_t positions() const { return std::int64_t(micro_batch) * seq_len; }  // of one rank
    std::int64_t global_rows() const { return std::int64_t(micro_batch) * world; }  // of all ranks
    std::int64_t global_positions() const { return positions() * world; }
};

// Throws Error for sizes below 1, more than 2^31 - 1 positions per rank, and a rank outside [0, world).
void check(const BatchShape& shape);

// Where reading continues, the same on every rank: the next row of rank 0, counted in the order of its epoch.
struct LoaderPosition {
    std::int64_t epoch = 0, row = 0;
    bool operator==(const LoaderPosition&) const = default;
};

struct Batch {
    // (micro_batch, seq_len); targets are shifted by one token, or kernels::kIgnoreTarget
    std::vector<std::int32_t> inputs, targets;
    std::int64_t valid_targets = 0;             // targets that are not ignored
    LoaderPosition from;                        // the first row of all ranks; unused in validation

    Batch() = default;
    explicit Batch(const BatchShape& shape) : inputs(std::size_t(shape.positions())), targets(inputs.size()) {}
};

// inputs[i] = tokens[i], targets[i] = tokens[i + 1] for every i of inputs; `tokens` has one element more.
void split_inputs_and_targets(std::span<const std::uint16_t> tokens, std::span<std::int32_t> inputs,
                              std::span<std::int32_t> targets);

// Reads one row of `shard`, or several consecutive ones, starting at token `first`: `valid` positions, then padding
// (input 0, target kernels::kIgnoreTarget). Under causal attention, padding at the end of a row changes nothing. Throws
// a run-time Error for an id outside the vocabulary, and if the shard was truncated.
void fill_rows(const Shard& shard, std::int64_t first, std::int64_t valid, std::span<std::int32_t> inputs,
               std::span<std::int32_t> targets);

// Ignores the target at the first token of each document, whose only context is the end-of-text token before it.
void ignore_document_starts(Batch& batch, std::int32_t end_of_text);

void count_valid_targets(Batch& batch);

// Numbers the rows of all shards consecutively: row i is row i - first(shard) of its shard.
class RowNumbers {
public:
    explicit RowNumbers(const std::vector<std::int64_t>& rows_of_shard);
    std::int64_t total() const { return first_.back(); }
    std::int64_t first(std::int64_t shard) const { return first_[std::size_t(shard)]; }
    struct Place {
        std::int64_t shard, row;
        std::int64_t left;  // rows from this one to the end of the shard
    };
    Place find(std::int64_t row) const;  // 0 <= row < total()

private:
    std::vector<std::int64_t> first_;  // the first row of every shard, then the total
};

}  // namespace llmc
