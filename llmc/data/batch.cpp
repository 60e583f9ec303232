// batch.cpp - copies inputs and targets from shards, and finds the shard of a row
#include "llmc/data/batch.h"

#include <algorithm>
#include <limits>
#include <string>

#include "kernels/base/error.h"
#include "kernels/device/types.h"

namespace llmc {

void check(const BatchShape& shape) {
    require(shape.micro_batch >= 1, "micro-batch", shape.micro_batch, "at least 1");
    require(shape.seq_len >= 1, "sequence length", shape.seq_len, "at least 1");
    require(shape.positions() <= std::numeric_limits<std::int32_t>::max(), "positions of a micro-batch",
            shape.positions(), "at most 2147483647", "use a smaller micro-batch and more gradient accumulation");
    require(shape.world >= 1, "number of ranks", shape.world, "at least 1");
    require(shape.rank >= 0 && shape.rank < shape.world, "rank", shape.rank, "0 to " + std::to_string(shape.world - 1));
}

// One pass over the ids for both outputs; __restrict lets the compiler vectorize the widening.
void split_inputs_and_targets(std::span<const std::uint16_t> tokens, std::span<std::int32_t> inputs,
                              std::span<std::int32_t> targets) {
    const std::uint16_t* __restrict token = tokens.data();
    std::int32_t* __restrict input = inputs.data();
    std::int32_t* __restrict target = targets.data();
    for (std::size_t i = 0; i < inputs.size(); ++i) {
        input[i] = token[i];
        target[i] = token[i + 1];
    }
}

void fill_rows(const Shard& shard, std::int64_t first, std::int64_t valid, std::span<std::int32_t> inputs,
               std::span<std::int32_t> targets) {
    if (valid > 0) {
        const auto tokens = shard.read(first, valid + 1);
        split_inputs_and_targets(tokens, inputs.first(std::size_t(valid)), targets.first(std::size_t(valid)));
    }
    std::fill(inputs.begin() + valid, inputs.end(), 0);
    std::fill(targets.begin() + valid, targets.end(), kernels::kIgnoreTarget);
}

void ignore_document_starts(Batch& batch, std::int32_t end_of_text) {
    for (std::size_t i = 0; i < batch.inputs.size(); ++i)
        if (batch.inputs[i] == end_of_text) batch.targets[i] = kernels::kIgnoreTarget;
}

void count_valid_targets(Batch& batch) {
    batch.valid_targets = std::int64_t(batch.targets.size()) -
                          std::count(batch.targets.begin(), batch.targets.end(), kernels::kIgnoreTarget);
}

RowNumbers::RowNumbers(const std::vector<std::int64_t>& rows_of_shard) : first_{0} {
    for (const std::int64_t rows : rows_of_shard) first_.push_back(first_.back() + rows);
}

RowNumbers::Place RowNumbers::find(std::int64_t row) const {
    // the end of the row's shard; shards without rows are skipped
    const auto end = std::upper_bound(first_.begin(), first_.end(), row);
    return {.shard = end - first_.begin() - 1, .row = row - end[-1], .left = *end - row};
}

}  // namespace llmc
