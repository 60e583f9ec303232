// gradient_buckets.cpp - divides the parameters into one bucket per block, and each bucket into parts with owners
#include "llmc/model/gradient_buckets.h"

#include <tuple>

#include "kernels/base/error.h"

namespace llmc {

GradientBuckets::GradientBuckets(const ParameterTable& table, const Sharding& sharding)
    : sharding_(sharding) {
    require(sharding.stage >= 0 && sharding.stage <= 2, "--zero-stage", sharding.stage, "0, 1 or 2");
    if (sharding.whole_matrices) matrices_ = block_matrices(table, sharding.ranks);
    const int layers = table.config().layers;
    const auto offset = [&](int tensor) { return table.tensors()[std::size_t(tensor)].offset; };
    std::int64_t end = table.elements();
    const auto cut = [&](std::int64_t first) {
        divide(buckets_.emplace_back(GradientBucket{.first = first, .size = end - first}));
        end = first;
    };
    for (int layer = layers - 1; layer >= 0; --layer) {
        cut(offset(table.block(layer).ln1.weight));
        largest_block_ = std::max(largest_block_, buckets_.back().size);
    }
    cut(0);
    int bucket = size() - 1;  // tensors are in ascending order, buckets in descending order
    for (const ParameterSpec& spec : table.tensors()) {
        while (spec.offset >= buckets_[std::size_t(bucket)].first + buckets_[std::size_t(bucket)].size) --bucket;
        of_tensor_.push_back(bucket);
    }
    assign();
}

void GradientBuckets::divide(GradientBucket& bucket) const {
    std::int64_t first = bucket.first;
    const std::int64_t end = bucket.first + bucket.size;
    const auto add_shared = [&](std::int64_t size) {
        if (size > 0)
            bucket.parts.push_back({.first = first, .size = size,
                                    .shard = shard_of(size, sharding_.rank, sharding_.ranks)});
    };
    for (int i = 0; i < int(matrices_.size()); ++i) {
        const BlockMatrix& matrix = matrices_[std::size_t(i)];
        if (matrix.first < bucket.first || matrix.first >= end) continue;
        add_shared(matrix.first - first);
        bucket.parts.push_back({.first = matrix.first, .size = matrix.size(), .matrix = i,
                                .shard = {0, matrix.owner == sharding_.rank ? matrix.size() : 0}});
        first = matrix.first + matrix.size();
    }
    add_shared(end - first);
}

// What this rank owns, and where it is in an array of that.
void GradientBuckets::assign() {
    const bool shares_all = !sharding_.shards_state();  // what is in no matrix
    std::int64_t offset = 0;
    std::vector<BucketPart*> matrices;
    for (GradientBucket& bucket : buckets_)
        for (BucketPart& part : bucket.parts) {
            if (part.matrix) {
                matrices.push_back(&part);
                continue;
            }
            part.offset = offset;
            offset += shares_all ? part.size : part.shard.size;
        }
    outside_matrices_ = offset;
    std::ranges::sort(matrices, {}, [&](const BucketPart* part) {
        const BlockMatrix& matrix = matrices_[std::size_t(*part->matrix)];
        return std::tuple(matrix.rows, matrix.columns, matrix.first);
    });
    for (BucketPart* const part : matrices) {
        part->offset = offset;
        offset += part->shard.size;
    }
    owned_elements_ = offset;
    if (shares_all && matrices_.empty()) {
        owned_.push_back({.first = 0, .size = owned_elements_, .offset = 0, .bucket = {}, .matrix = {}});
        return;
    }
    for (int i = size() - 1; i >= 0; --i)
        for (const BucketPart& part : buckets_[std::size_t(i)].parts) {
            if (part.matrix && owner(part) != sharding_.rank) continue;
            const ShardRange range = shares_all ? ShardRange{0, part.size} : part.shard;
            owned_.push_back({.first = part.first + range.first, .size = range.size, .offset = part.offset, .bucket = i,
                              .matrix = part.matrix});
        }
}

}  // namespace llmc
