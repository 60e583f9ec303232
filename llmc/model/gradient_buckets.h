// gradient_buckets.h - divides the flat array of parameters for data-parallel training into buckets, which are reduced
// together, and says which rank owns which elements
//
// Buckets are contiguous and numbered in the order in which the backward pass completes their gradients:
//   0: last block and final LayerNorm,  1: the block before,  ...,  layers - 1: first block,  layers: token and
//                                       position table
// The token table, which head and embedding share, is complete last.
//
// A bucket consists of parts. Without whole matrices it is one part, of which every rank owns a shard (shard_of(),
// communicator.h). Whole matrices have one owner each, at every stage; between them are parts of the first kind.
// At stage 1 a rank stores Adam moments and master weights of what it owns only, at stage 2 also gradients. Such an
// array has the shards of the first kind one after another, in bucket order, and then the matrices, those of a shape
// together. At stage 0 all ranks own the parts of the first kind.
//
// Plain host code.
#pragma once
#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "llmc/comm/communicator.h"
#include "llmc/weights/parameters.h"

namespace llmc {

// A weight matrix of a block, for an optimizer that updates matrices as a whole. A block has six: query, key and value,
// which one tensor contains, the attention's projection, and the two of the MLP.
struct BlockMatrix {
    std::int64_t first;  // in the flat array of parameters
    int rows, columns;   // row-major
    int owner;           // a rank

    std::int64_t size() const { return std::int64_t(rows) * columns; }
    // The multiplications of a step of Newton-Schulz (kernels/matmul/newton_schulz.h).
    double cost() const {
        const double a = std::min(rows, columns), b = std::max(rows, columns);
        return a * a * (2 * b + a);
    }
};

// In the order of the flat array. The owners depend only on the arguments: the largest matrix first, each goes to the
// rank with the least work so far. As the channels are a multiple of 8, every matrix starts at a multiple of 64
// elements, as collectives and kernels need.
std::vector<BlockMatrix> block_matrices(const ParameterTable& table, int ranks);

// What a rank stores at each stage (ZeRO; Rajbhandari et al. 2019, arXiv 1910.02054). Stage 0: everything.
struct Sharding {
    int stage = 0, rank = 0, ranks = 1;
    bool whole_matrices = false;                          // those of the blocks have one owner each
    bool shards_state() const { return stage >= 1; }      // Adam moments, and in bf16 master weights
    bool shards_gradients() const { return stage >= 2; }  // also gradients
};

struct BucketPart {
    ElementRange whole;           // in the bucket
    std::optional<int> matrix{};  // if it is a whole one: its index in GradientBuckets::matrices()
    ElementRange shard{};         // of this rank, in the sums over ranks: in the bucket
    std::int64_t offset = 0;      // of its elements in an array of what this rank owns
};

struct GradientBucket {
    ElementRange flat;  // in the flat array
    std::vector<BucketPart> parts{};
};

struct OwnedShard {
    ElementRange flat, owned;   // in the flat array, and in an array of all elements of this rank
    std::optional<int> bucket;  // nullopt: the whole flat array, which every rank owns
    std::optional<int> matrix;  // as in BucketPart
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
    std::int64_t largest_block() const { return largest_block_; }    // elements of the largest bucket of a block
    std::int64_t largest() const { return std::max(largest_block_, buckets_.back().flat.size); }

    const Sharding& sharding() const { return sharding_; }
    // The elements that this rank updates: the whole array as one, or its ranges bucket by bucket, in the order in
    // which the next forward pass needs them.
    const std::vector<OwnedShard>& owned() const { return owned_; }
    std::int64_t owned_elements() const { return owned_elements_; }
    // Of those, the ones before the matrices.
    std::int64_t elements_outside_matrices() const { return outside_matrices_; }
    bool owns_all() const { return !owned_.front().bucket; }  // as one range
    const std::vector<BlockMatrix>& matrices() const { return matrices_; }
    int owner(const BucketPart& part) const { return matrices_[std::size_t(*part.matrix)].owner; }  // of a whole matrix

    // Adds to a communicator's group: all ranks get the elements of a bucket that not all of them own. `values`: the
    // bucket's, with those of this rank in place.
    template <class T> void gather(Communicator& communicator, int bucket, std::span<T> values) const {
        for (const BucketPart& part : (*this)[bucket].parts)
            if (part.matrix) communicator.broadcast<T>(part.whole.of(values), owner(part));
            else if (sharding_.shards_state())
                communicator.all_gather<T>(part.whole.of(values), part.shard.of(values));
    }

private:
    void divide(GradientBucket& bucket) const;
    void assign();

    Sharding sharding_;
    std::vector<BlockMatrix> matrices_;
    std::vector<GradientBucket> buckets_;
    std::vector<int> of_tensor_;
    std::int64_t largest_block_ = 0;
    std::vector<OwnedShard> owned_;
    std::int64_t owned_elements_ = 0, outside_matrices_ = 0;
};

}  // namespace llmc
