// gradient_buckets.h - the flat array of parameters cut for data-parallel training: into buckets that are reduced
// together, and each of them into a shard per rank
//
// Buckets are contiguous and numbered in the order in which the backward pass completes their gradients:
//   0: last block and final LayerNorm,  1: the block before,  ...,  layers - 1: first block,  layers: token and
//                                       position table
// The token table, which head and embedding share, is complete last. A bucket is cut into shards by shard_of()
// (communicator.h). Stage 1 keeps moments and master weights of its shards only, stage 2 gradients, too: such an array
// holds the shards one after another, in the order of the buckets.
//
// Plain host code.
#pragma once
#include <algorithm>
#include <optional>

#include "llmc/comm/communicator.h"
#include "llmc/weights/parameters.h"

namespace llmc {

// What a rank keeps, by stage (ZeRO; Rajbhandari et al. 2019, arXiv 1910.02054). Stage 0: everything.
struct Sharding {
    int stage = 0, rank = 0, ranks = 1;
    bool shards_state() const { return stage >= 1; }      // of moments, and master weights in bf16: its shards only
    bool shards_gradients() const { return stage >= 2; }  // of gradients, too
};

struct GradientBucket {
    std::int64_t first, size;   // in the flat array
    ShardRange shard;           // this rank's, counted from `first`
    std::int64_t shard_offset;  // where the shard begins in an array of this rank's shards

    template <class T> std::span<T> in_flat(std::span<T> flat) const {
        return flat.subspan(std::size_t(first), std::size_t(size));
    }
};

// A stretch of the flat array, and where it lies in an array of all that this rank owns.
struct OwnedShard {
    std::int64_t first, size;   // in the flat array
    std::int64_t offset;        // where it begins in an array of what this rank owns
    std::optional<int> bucket;  // that it is a shard of; none: it is the whole flat array, which every rank owns

    template <class T> std::span<T> in_flat(std::span<T> flat) const {
        return flat.subspan(std::size_t(first), std::size_t(size));
    }
    template <class T> std::span<T> in_owned(std::span<T> owned) const {
        return owned.subspan(std::size_t(offset), std::size_t(size));
    }
};

class GradientBuckets {
public:
    GradientBuckets(const ParameterTable& table, const Sharding& sharding);

    const std::vector<GradientBucket>& all() const { return buckets_; }
    const GradientBucket& operator[](int bucket) const { return buckets_[std::size_t(bucket)]; }
    int size() const { return int(buckets_.size()); }
    int embeddings() const { return size() - 1; }
    int of_layer(int layer) const { return size() - 2 - layer; }
    int of_tensor(int tensor) const { return of_tensor_[std::size_t(tensor)]; }
    std::int64_t shard_elements() const { return shard_elements_; }  // of all shards
    std::int64_t largest_block() const { return largest_block_; }  // elements of the largest bucket but the tables
    std::int64_t largest() const { return std::max(largest_block_, buckets_[std::size_t(embeddings())].size); }

    OwnedShard shard(int bucket) const;
    // What this rank updates and keeps the moments of: the whole array as one, or its shard of every bucket, in the
    // order in which the next forward pass needs them.
    const std::vector<OwnedShard>& owned() const { return owned_; }
    std::int64_t owned_elements() const { return owned_elements_; }

private:
    std::vector<GradientBucket> buckets_;
    std::vector<int> of_tensor_;
    std::int64_t shard_elements_ = 0, largest_block_ = 0;
    std::vector<OwnedShard> owned_;
    std::int64_t owned_elements_ = 0;
};

}  // namespace llmc
