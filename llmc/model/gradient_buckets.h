// gradient_buckets.h - the flat array of parameters cut for data-parallel training: into buckets that are reduced
// together, each into a shard per rank, and into modules whose norms are told apart
//
// Buckets are contiguous and numbered in the order in which the backward pass completes their gradients:
//   0: last block and final LayerNorm,  1: the block before,  ...,  layers - 1: first block,  layers: token and
//                                       position table
// The token table, which head and embedding share, is complete last. A rank's shard of a bucket is its shard
// (communicator.h); stage 1 keeps moments and master weights of the shards only, stage 2 their gradients only. Such an
// array holds the shards one after another, in the order of the buckets.
//
// Plain host code.
#pragma once
#include <algorithm>

#include "kernels/grad_norm.h"
#include "llmc/comm/communicator.h"
#include "llmc/weights/parameters.h"

namespace llmc {

// What a rank keeps. Stage 0: everything; 1: moments and master weights of its shards; 2: gradients of its shards, too
// (ZeRO; Rajbhandari et al. 2019, arXiv 1910.02054).
struct Sharding {
    int stage = 0, rank = 0, ranks = 1;
};

struct GradientBucket {
    std::int64_t first, size;  // in the flat array
    ShardRange shard;          // this rank's, counted from `first`
    std::int64_t shard_offset;         // where the shard begins in an array of this rank's shards

    template <class T> std::span<T> in_flat(std::span<T> flat) const {
        return flat.subspan(std::size_t(first), std::size_t(size));
    }
    template <class T> std::span<T> shard_in_flat(std::span<T> flat) const {
        return flat.subspan(std::size_t(first + shard.first), std::size_t(shard.size));
    }
    template <class T> std::span<T> in_shards(std::span<T> shards) const {
        return shards.subspan(std::size_t(shard_offset), std::size_t(shard.size));
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

private:
    std::vector<GradientBucket> buckets_;
    std::vector<int> of_tensor_;
    std::int64_t shard_elements_ = 0, largest_block_ = 0;
};

// Modules, as PyTorch names them, whose norms are told apart: wte, wpe, and of every block attn, mlp and ln, and ln_f.
// Each lies within one bucket.
struct NormModules {
    explicit NormModules(const ParameterTable& table, const GradientBuckets& buckets);
    struct Stretch {
        std::int64_t first, size;  // in the flat array
        int bucket, module;
    };
    std::vector<std::string> names;    // in the order of the buckets
    std::vector<Stretch> stretches;    // ascending by bucket, then by module
};

// Tiles of every module, by bucket: of whole buckets, or of this rank's shards. A tile's first element is counted from
// the start of the bucket or shard.
struct NormTiles {
    NormTiles(const NormModules& modules, const GradientBuckets& buckets, bool shards_only);
    std::vector<kernels::NormTile> tiles;
    std::vector<std::int32_t> module_start;   // (modules + 1)
    std::vector<std::size_t> bucket_start;   // (buckets + 1)
};

}  // namespace llmc
