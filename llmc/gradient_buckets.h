// gradient_buckets.h - the flat array of parameters cut for data-parallel training: into buckets that are reduced together, each into a piece per
// rank, and into groups whose norms are told apart
//
// Buckets are contiguous and numbered in the order in which the backward pass completes their gradients:
//   0: last block and final LayerNorm,  1: the block before,  ...,  layers - 1: first block,  layers: token and position table
// The token table, which head and embedding share, is complete last. A rank's piece of a bucket is its shard (communicator.h); stage 1 keeps moments
// and masters of the pieces only, stage 2 their gradients only. Such an array holds the pieces one after another, in the order of the buckets.
//
// Plain host code.
#pragma once
#include <algorithm>

#include "kernels/grad_norm.h"
#include "llmc/communicator.h"
#include "llmc/parameters.h"

namespace llmc {

// What a rank keeps. Stage 0: everything; 1: moments and masters of its pieces; 2: gradients of its pieces, too (ZeRO; Rajbhandari et al. 2019, arXiv
// 1910.02054).
struct Sharding {
    int stage = 0, rank = 0, ranks = 1;
};

struct GradientBucket {
    std::int64_t first, size;  // in the flat array
    ShardRange piece;          // this rank's, counted from `first`
    std::int64_t kept;         // where the piece begins in an array of this rank's pieces

    template <class T> std::span<T> in_flat(std::span<T> flat) const { return flat.subspan(std::size_t(first), std::size_t(size)); }
    template <class T> std::span<T> piece_in_flat(std::span<T> flat) const { return flat.subspan(std::size_t(first + piece.first),
                                                                                                 std::size_t(piece.size)); }
    template <class T> std::span<T> piece_in_kept(std::span<T> pieces) const { return pieces.subspan(std::size_t(kept), std::size_t(piece.size)); }
};

class GradientBuckets {
public:
    GradientBuckets(const ParameterTable& table, const Sharding& sharding);

    const std::vector<GradientBucket>& all() const { return buckets_; }
    const GradientBucket& operator[](int bucket) const { return buckets_[std::size_t(bucket)]; }
    int size() const { return int(buckets_.size()); }
    int tables() const { return size() - 1; }
    int of_layer(int layer) const { return size() - 2 - layer; }
    int of_tensor(int tensor) const { return of_tensor_[std::size_t(tensor)]; }
    std::int64_t kept_elements() const { return kept_elements_; }  // of all pieces
    std::int64_t largest_block() const { return largest_block_; }  // elements of the largest bucket but the tables
    std::int64_t largest() const { return std::max(largest_block_, buckets_[std::size_t(tables())].size); }

private:
    std::vector<GradientBucket> buckets_;
    std::vector<int> of_tensor_;
    std::int64_t kept_elements_ = 0, largest_block_ = 0;
};

// Groups of parameters whose norms are told apart: wte, wpe, and of every block attn, mlp and ln, and ln_f. Each lies within one bucket.
struct NormGroups {
    explicit NormGroups(const ParameterTable& table, const GradientBuckets& buckets);
    struct Stretch {
        std::int64_t first, size;  // in the flat array
        int bucket, group;
    };
    std::vector<std::string> names;    // in the order of the buckets
    std::vector<Stretch> stretches;    // ascending by bucket, then by group
};

// Tiles of every group, by bucket: of whole buckets, or of this rank's pieces. A tile's first element is counted from the start of the bucket or
// piece.
struct NormTiles {
    NormTiles(const NormGroups& groups, const GradientBuckets& buckets, bool pieces_only);
    std::vector<kernels::NormTile> tiles;
    std::vector<std::int32_t> group_start;   // (groups + 1)
    std::vector<std::size_t> bucket_start;   // (buckets + 1)
};

}  // namespace llmc
