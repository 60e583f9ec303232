// gradient_buckets.cpp - divides the parameters into one bucket per block, and each bucket into one shard per rank
#include "llmc/model/gradient_buckets.h"

#include "kernels/base/error.h"

namespace llmc {

GradientBuckets::GradientBuckets(const ParameterTable& table, const Sharding& sharding) {
    require(sharding.stage >= 0 && sharding.stage <= 2, "--zero-stage", sharding.stage, "0, 1 or 2");
    const int layers = table.config().layers;
    const auto offset = [&](int tensor) { return table.tensors()[std::size_t(tensor)].offset; };
    std::int64_t end = table.elements();
    const auto cut = [&](std::int64_t first) {
        const ShardRange shard = shard_of(end - first, sharding.rank, sharding.ranks);
        buckets_.push_back({.first = first, .size = end - first, .shard = shard, .shard_offset = shard_elements_});
        shard_elements_ += shard.size;
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

    if (sharding.shards_state()) {
        for (int i = size() - 1; i >= 0; --i) owned_.push_back(shard(i));
    } else {
        owned_.push_back({.first = 0, .size = table.elements(), .offset = 0, .bucket = std::nullopt});
    }
    for (const OwnedShard& shard : owned_) owned_elements_ += shard.size;
}

OwnedShard GradientBuckets::shard(int bucket) const {
    const GradientBucket& whole = buckets_[std::size_t(bucket)];
    return {.first = whole.first + whole.shard.first, .size = whole.shard.size, .offset = whole.shard_offset,
            .bucket = bucket};
}

}  // namespace llmc
