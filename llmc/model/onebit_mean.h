// onebit_mean.h - the mean over ranks, or over nodes, of a flat array with 1 or 4 bits per element, bucket by bucket
// over any communicator
//
// Each bucket, a gradient bucket or an equal part of one, is one run of the algorithm of kernels/onebit.h, with its own
// scales and its own, masked padding. Buckets are pipelined: while the messages of one are sent, the next one is
// compressed, and the previous one is averaged by its servers.
//
//   exchange()  compress and scales, all-to-all of messages;  serve and scales, all-gather of replies;  the verdict:
//               whether all scales are finite (onebit_check_scales). With 4 bits, quantize follows scales.
//   commit()    updates the server errors; enqueue it after all readers of buckets()
//
// Over nodes of G ranks each, a segment of the array has G buckets, one per local rank: a rank compresses and serves
// the bucket of its local rank, together with the ranks of the other nodes that have the same local rank. The replies,
// which encode the mean exactly, are then gathered within the node. So every rank sees the scales of all buckets and
// computes the same verdict.
//
// No state changes before the verdict over all buckets; the caller applies it with onebit_skip_non_finite
// (kernels/onebit_adam.h) or outer_apply (kernels/outer.h).
//
// Bytes per rank for n elements on R ranks: 4 n worker errors, 8 n / R server errors and sums, n / 2 messages, and
// masks. With 4 bits 3 n / 2 messages; without error feedback 4 n / R sums and no errors. On N nodes of G ranks:
// 4 n / G worker errors, the same for the node's sums, 8 n / (G N) server errors and sums, n / (4 G) messages, n / 8
// replies.
#pragma once
#include <vector>

#include "kernels/device/memory.h"
#include "kernels/onebit.h"
#include "llmc/model/gradient_buckets.h"
#include "llmc/model/optimizer_state.h"

namespace llmc {

struct Context;
class LocalGradients;

// The participants of a mean. Over nodes: the ranks with the same local rank, and the ranks of this node.
struct OnebitRanks {
    Communicator* across;
    Communicator* within = nullptr;  // nullptr: every rank is a worker
};

// Which elements share a scale. Worker: a whole bucket; or a tensor, or 4096 neighbours, within a chunk. Server: its
// chunk, or the same groups.
enum class OnebitScale { bucket, tensor, block };

struct OnebitMeanSettings {
    OnebitScale scale = OnebitScale::tensor;
    int bits = 1;           // per element: 1 or 4
    bool errors = true;     // error feedback; 1 bit needs it
    float error_decay = 1;  // d of kernels/onebit.h, from 0 to 1
};

class OnebitMean {
public:
    // Context and communicators must outlive it. Errors are 0 and no element is active until set_active(). Throws Error
    // if settings are not as described, or if there are 4 bits and nodes. `of`: the mean is of what a rank owns, which
    // has the same ranges on all ranks; with one rank, of all elements.
    OnebitMean(const ParameterTable& table, const OnebitRanks& ranks, const OnebitMeanSettings& settings,
               Context& context, const Sharding& of = {});
    ~OnebitMean();  // waits for groups in progress
    OnebitMean(const OnebitMean&) = delete;
    OnebitMean& operator=(const OnebitMean&) = delete;

    // For the memory plan: for `workers` ranks, or nodes of `local_ranks` ranks each.
    struct Bytes {
        std::size_t device, lists;   // lists: of tiles and groups, in device memory, too
        std::size_t errors;          // of the checkpointed ones, with padding
        std::size_t messages;        // of a rank to all ranks; as many are those of the replies
    };
    static Bytes bytes(const ParameterTable& table, int workers, int local_ranks, const OnebitMeanSettings& settings,
                       const Sharding& of = {});

    // Sets the active elements: one bit per element of the flat array, element i at bit i % 32 of word i / 32. The same
    // on all ranks. Waits.
    void set_active(std::span<const std::uint32_t> active);
    void zero_errors();  // enqueued
    void admit();        // enqueued: finite() = 1

    struct Input {
        // Flat, or at stage 2 of what this rank owns: in: its gradient; out: the compensated values (OnebitCompress).
        std::span<float> values;
        std::span<const float> momentum, second_moment = {};  // flat, or empty
        std::span<const float> gradient_scale = {};           // (1), or empty
        float momentum_weight = 0, gradient_weight = 1, eps = 0;
        // Over nodes the values are not changed: these are summed over the node's ranks, segment by segment.
        LocalGradients* gradients = nullptr;
    };
    // Work that is enqueued on the compute stream after this call sees the results in buckets(). finite() is then the
    // logical AND of its old value and of "all scales of all buckets are finite". The values must not change until
    // commit().
    void exchange(const Input& input);
    std::span<std::int32_t> finite() const { return finite_.span(); }

    struct Bucket {
        ElementRange flat, owned;  // in the flat array, and in an array of what the rank owns
        ElementRange segment;      // of the flat array
        kernels::OnebitLayout layout;
        std::vector<std::int64_t> ends{};  // of groups; empty: one group
        device::Array<kernels::OnebitTile> tiles{}, served_tiles{};
        device::Array<kernels::OnebitGroup> groups{}, served_groups{};
        // As in kernels/onebit.h. A rank computes its mean from the replies.
        std::span<std::uint32_t> active{}, replies{};
        // Empty for another local rank's bucket; both errors also without error feedback.
        std::span<float> error{}, server_error{}, sums{}, node_sum{};
        std::span<std::uint32_t> messages{}, received{}, reply{}, replies_of_segment{};
    };
    const std::vector<Bucket>& buckets() const { return buckets_; }  // ordered by segment, then by local rank
    std::size_t tiles() const;                                       // of all buckets
    // The bucket's part of the values of exchange(), or of the node's sums: empty for another local rank's bucket.
    std::span<float> values_of(const Bucket& bucket, std::span<float> values) const {
        return ranks_.within ? bucket.node_sum : (owned_values_ ? bucket.owned : bucket.flat).of(values);
    }
    // Whether a worker has one scale for the whole bucket, not one per group of a chunk.
    bool one_scale() const { return settings_.scale == OnebitScale::bucket; }
    void commit();

    // The errors, for checkpoints: this rank's errors as a worker, in ascending order, and as the server of a chunk of
    // every bucket; without padding, which is masked and has no errors. Empty without error feedback.
    std::vector<StateShard> worker_errors() const;
    std::vector<StateShard> server_errors() const;

    // The memory of the worker errors, (elements) floats if every rank is a worker, for other use before set_active().
    std::span<float> error_memory() const;

private:
    static std::vector<Bucket> divide(const ParameterTable& table, int workers, int local_ranks,
                                      const OnebitMeanSettings& settings, const Sharding& of);
    static std::size_t lay_out(std::vector<Bucket>& buckets, int local_rank, int local_ranks, bool errors,
                               std::byte* base);
    float scale_factor() const { return settings_.bits == 4 ? kernels::kScaleOf4Bits : 1.0f; }
    void compress(const Bucket& bucket, const Input& input);
    void serve(const Bucket& bucket);
    std::size_t segments() const { return buckets_.size() / std::size_t(local_ranks_); }
    // This rank's bucket of a segment.
    const Bucket& own(std::size_t segment) const {
        return buckets_[segment * std::size_t(local_ranks_) + std::size_t(local_rank_)];
    }
    // Segment numbers in the order of the flat array.
    std::vector<std::size_t> ascending() const;

    Context& context_;
    OnebitRanks ranks_;
    int rank_, local_rank_, local_ranks_;
    OnebitMeanSettings settings_;
    bool owned_values_;  // those of exchange() are of what this rank owns
    std::int64_t elements_;
    std::vector<Bucket> buckets_;
    device::Memory memory_;          // of all buckets
    device::Array<double> partial_;  // sized for the largest bucket
    device::Array<std::int32_t> finite_, yes_;
    std::vector<CommEvent> summed_, sent_, answered_, shared_;
    CommEvent last_across_{}, last_within_{};
};

}  // namespace llmc
