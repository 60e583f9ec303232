// validation_batches.cpp - selects the rows of the validation shards and divides them among the ranks
#include "llmc/data/validation_batches.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "kernels/base/error.h"
#include "kernels/device/types.h"

namespace llmc {
namespace {

std::vector<std::int64_t> rows_of_shards(std::span<const Shard> shards, const BatchShape& shape) {
    check(shape);
    std::vector<std::int64_t> rows;
    for (const Shard& shard : shards) rows.push_back(ceil_div(shard.tokens() - 1, shape.seq_len));
    return rows;
}

// The first token of a shard is not a target.
std::int64_t targets_of(std::span<const Shard> shards) {
    std::int64_t targets = 0;
    for (const Shard& shard : shards) targets += shard.tokens() - 1;
    return targets;
}

}  // namespace

ValidationBatches::ValidationBatches(std::span<const Shard> shards, std::int64_t tokens, const BatchShape& shape,
                                     bool mask_document_start, bool spread)
    : shards_(shards), shape_(shape), mask_document_start_(mask_document_start), rows_(rows_of_shards(shards, shape)) {
    require(tokens >= 1, "number of validation tokens", tokens, "at least 1");
    available_ = targets_of(shards_);
    const std::string more = "hold out more text than in " + shards_.front().path();
    require(available_ > 0, "number of tokens in each shard of the validation data", 1,
            "at least 2, an input and its target", more);
    spread_rows_ = spread && tokens < available_ ? ceil_div(tokens, shape.seq_len) : rows_.total();
    const auto take = [&] {  // whether it is enough: rows at the ends of shards may be shorter
        for (rows_used_ = taken_ = 0; rows_used_ < spread_rows_ && taken_ < tokens; ++rows_used_) {
            last_row_targets_ = std::min(place_of(rows_used_).targets, tokens - taken_);
            taken_ += last_row_targets_;
        }
        return taken_ == std::min(tokens, available_);
    };
    while (!take()) spread_rows_ = std::min(spread_rows_ + ceil_div(tokens - taken_, shape.seq_len), rows_.total());
    if (mask_document_start_) for_targets([&](std::int32_t) { ++targets_; });
    else targets_ = taken_;
    require(targets_ > 0, "number of validation targets that --mask-document-start leaves of " + std::to_string(taken_),
            targets_, "at least 1", more + ", or validate on more tokens");
    batch_ = Batch(shape);
    batches_ = ceil_div(rows_used_, shape_.global_rows());
}

ValidationBatches::Place ValidationBatches::place_of(std::int64_t row) const {
    // the row in the middle of part `row` of spread_rows_ equal parts; row itself, if these are all rows
    const auto twice = (unsigned __int128)(2 * row + 1) * std::uint64_t(rows_.total());
    const auto [number, row_in_shard, left] = rows_.find(std::int64_t(twice / std::uint64_t(2 * spread_rows_)));
    const Shard& shard = shards_[std::size_t(number)];
    const std::int64_t first = row_in_shard * shape_.seq_len;
    return {shard, first, std::min<std::int64_t>(shape_.seq_len, shard.tokens() - 1 - first)};
}

template <class Use> void ValidationBatches::for_targets(Use&& use) const {
    Batch row({.micro_batch = 1, .seq_len = shape_.seq_len});
    for (std::int64_t i = 0; i < rows_used_; ++i) {
        fill_row(i, row.inputs, row.targets);
        if (mask_document_start_) ignore_document_starts(row, shards_[0].vocabulary().end_of_text);
        for (const std::int32_t id : row.targets)
            if (id != kernels::kIgnoreTarget) use(id);
    }
}

std::int64_t ValidationBatches::target_bytes(std::span<const std::uint16_t> bytes_of_id) const {
    std::int64_t bytes = 0;
    for_targets([&](std::int32_t id) { bytes += bytes_of_id[std::size_t(id)]; });
    return bytes;
}

const Batch& ValidationBatches::operator[](std::int64_t j) {
    require(j >= 0 && j < batches_, "number of a validation batch", j, "0 to " + std::to_string(batches_ - 1));
    for (std::int64_t i = 0; i < shape_.micro_batch; ++i) {
        const auto first = std::size_t(i * shape_.seq_len), length = std::size_t(shape_.seq_len);
        fill_row(j * shape_.global_rows() + std::int64_t(shape_.rank) * shape_.micro_batch + i,
                 std::span(batch_.inputs).subspan(first, length), std::span(batch_.targets).subspan(first, length));
    }
    if (mask_document_start_) ignore_document_starts(batch_, shards_[0].vocabulary().end_of_text);
    count_valid_targets(batch_);
    return batch_;
}

void ValidationBatches::fill_row(std::int64_t row, std::span<std::int32_t> inputs,
                                 std::span<std::int32_t> targets) const {
    if (row >= rows_used_) return fill_rows(shards_[0], 0, 0, inputs, targets);
    const Place place = place_of(row);
    fill_rows(place.shard, place.first, row == rows_used_ - 1 ? last_row_targets_ : place.targets, inputs, targets);
}

std::vector<ValidationSet> validation_sets(const ShardSet& shards, const std::vector<std::int64_t>& weights,
                                           std::int64_t tokens, const BatchShape& shape, bool mask_document_start,
                                           bool spread) {
    std::vector<ValidationSet> sets;
    const std::int64_t available = targets_of(shards.shards()),
                       sum = std::accumulate(weights.begin(), weights.end(), std::int64_t(0));
    const bool divides = tokens < available && shards.corpora().size() > 1;
    std::span<const Shard> rest = shards.shards();
    for (const Corpus& corpus : shards.corpora()) {
        const auto of_set = rest.first(std::size_t(corpus.shards));
        rest = rest.subspan(of_set.size());
        const double share = weights.empty() ? double(targets_of(of_set)) / double(available)
                                             : double(weights[sets.size()]) / double(sum);
        const std::int64_t rows = std::max(std::llround(share * double(tokens) / shape.seq_len), 1LL);
        ValidationBatches batches(of_set, divides ? rows * shape.seq_len : tokens, shape, mask_document_start, spread);
        const double weight = weights.empty() ? 1 : share / double(batches.targets());
        sets.push_back({corpus.pattern, weight, std::move(batches)});
    }
    return sets;
}

}  // namespace llmc
