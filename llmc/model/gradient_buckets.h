// gradient_buckets.h - divides the flat array of parameters for data-parallel training into buckets, which are reduced
// together, and each bucket into one shard per rank
//
// Buckets are contiguous and numbered in the order in which the backward pass completes their gradients:
//   0: last block and final LayerNorm,  1: the block before,  ...,  layers - 1: first block,  layers: token and
//                                       position table
// The token table, which head and embedding share, is complete last. shard_of() (communicator.h) divides a bucket into
// shards. At stage 1 a rank stores Adam moments and master weights of its shards only, at stage 2 also gradients: such
// an array contains the shards one after another, in bucket order.
//
// Plain host code.
#pragma once
#include <algorithm>
#include <optional>

#include "llmc/comm/communicator.h"
#include "llmc/weights/parameters.h"

namespace llmc {

// What a rank stores at each stage (ZeRO; Rajbhandari et al. 2019, arXiv 1910.02054). Stage 0: everything.
struct Sharding {
    int stage = 0, rank = 0, ranks = 1;
    bool shards_state() const { return stage >= 1; }      // Adam moments, and in bf16 master weights
    bool shards_gradients() const { return stage >= 2; }  // also gradients
};

struct GradientBucket {
    std::int64_t first, size;   // in the flat array
    ShardRange shard;           // this rank's shard, relative to `first`
    std::int64_t shard_offset;  // offset of the shard in an array of this rank's shards

    template <class T> std::span<T> in_flat(std::span<T> flat) const {
        return flat.subspan(std::size_t(first), std::size_t(size));
    }
};

// A range of the flat array that this rank owns, and its position in an array of all such ranges.
struct OwnedShard {
    std::int64_t first, size;   // in the flat array
    std::int64_t offset;        // in an array of this rank's elements
    std::optional<int> bucket;  // the bucket of the shard; nullopt: the whole flat array, which every rank owns

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
    std::int64_t shard_elements() const { return shard_elements_; }  // of all of this rank's shards
    std::int64_t largest_block() const { return largest_block_; }    // elements of the largest bucket of a block
    std::int64_t largest() const { return std::max(largest_block_, buckets_[std::size_t(embeddings())].size); }

    OwnedShard shard(int bucket) const;
    // The elements that this rank updates and stores the Adam moments of: the whole array as one, or its shard of every
    // bucket, in the order in which the next forward pass needs them.
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
