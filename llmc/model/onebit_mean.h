// onebit_mean.h - the mean over ranks, or over nodes, of a flat array at one bit an element, bucket by bucket over any
// communicator
//
// A bucket is one call of the primitive (kernels/onebit.h), with its own padding, which is masked, and scales. Buckets
// are pipelined: while the messages of one travel the next is compressed, and the one before served.
//
//   exchange()  compress and scales, all-to-all of messages;  serve and scales, all-gather of replies;  verdict
//   commit()    behind what reads exchanged(): the servers' errors
//
// Over nodes of G ranks each a stretch of the array is G buckets, one for each place in a node: a rank compresses and
// serves that of its place, among the ranks with the same place. The replies, which are the mean to the last bit, are
// then gathered within the node. So every rank sees the scales of all buckets, and comes to the same verdict.
//
// Nothing is kept before the verdict over all buckets: that is the caller's, by onebit_settle (kernels/onebit_adam.h).
//
// Memory of a rank, for n elements on R ranks: 4 n worker errors, 8 n / R servers' errors and sums, n / 2 messages, and
// masks. On N nodes of G ranks: 4 n / G worker errors and as much for the node's sums, 8 n / (G N) servers', n / 4 G
// messages, n / 8 replies.
#pragma once
#include <functional>
#include <vector>

#include "kernels/device/memory.h"
#include "kernels/onebit.h"
#include "llmc/model/gradient_buckets.h"

namespace llmc {

struct Context;

// Who takes part in a mean. Over nodes: the ranks with this one's place in their nodes, and those of its node.
struct OnebitRanks {
    Communicator* across;
    Communicator* within = nullptr;  // none: every rank is a worker of its own
};

// Which elements share a scale: of a worker, all of a bucket; or those of a tensor, or 4096 neighbours, within a chunk.
// A server's scale is of its chunk, or of the same groups.
enum class OnebitScale { bucket, tensor, block };

class OnebitMean {
public:
    // Context and communicators must outlive it. Errors are 0 and no element takes part until set_active().
    OnebitMean(const ParameterTable& table, const OnebitRanks& ranks, OnebitScale scale, Context& context);
    ~OnebitMean();  // waits for what is under way
    OnebitMean(const OnebitMean&) = delete;
    OnebitMean& operator=(const OnebitMean&) = delete;

    // Device bytes, for the memory plan: of `workers` ranks, or nodes of `places` ranks each.
    static std::size_t bytes(const ParameterTable& table, int workers, int places, OnebitScale scale);

    // The elements that take part: a bit for each of the flat array, element i at bit i % 32 of word i / 32. The same
    // on all ranks. All errors become 0. Waits.
    void set_active(std::span<const std::uint32_t> active);

    struct Input {
        std::span<float> values;  // flat: in this rank's gradient, out what compensates (OnebitCompress)
        std::span<const float> momentum, second_moment = {};  // flat, or none
        std::span<const float> gradient_scale = {};           // (1), or none
        float momentum_weight = 0, gradient_weight = 1, eps = 0;
        // Over nodes the values are left alone: the first begins the sum over the node's ranks of a stretch of them, of
        // which this rank's shard goes to `mine`, and the second makes the compute stream see it.
        std::function<CommEvent(const ShardRange& stretch, std::span<float> mine)> begin_sum{};
        std::function<void(CommEvent, const ShardRange& stretch, std::span<float> mine)> end_sum{};
    };
    // On return: what is enqueued on the compute stream sees exchanged(), and finite() with this verdict ANDed in. The
    // values must stay as they are until commit().
    void exchange(const Input& input);
    std::span<std::int32_t> finite() const { return finite_.span(); }

    // What a rank needs of a bucket to take its mean and, where it is this rank's, its error.
    struct Exchanged {
        kernels::OnebitLayout layout;
        std::span<const kernels::OnebitTile> tiles;
        ShardRange flat;                           // where the bucket lies
        std::span<const float> compensated;        // in `values`, or the node's sums
        std::span<float> error;
        std::span<const std::uint32_t> messages;   // of a bucket of another place these three are empty
        std::span<const std::uint32_t> replies, active;
        bool one;
    };
    std::size_t buckets() const { return buckets_.size(); }
    std::size_t tiles() const { return tiles_.size(); }  // of all buckets
    Exchanged exchanged(std::size_t bucket, std::span<const float> values) const;
    void commit();

    // The errors, for checkpoints: this rank's as a worker, and as the server of a chunk of every bucket, which are
    // these stretches of the flat array, without padding. Workers' ascend.
    std::vector<ShardRange> worked() const;
    std::vector<ShardRange> served() const;
    std::int64_t worked_elements() const;
    std::int64_t served_elements() const;
    void copy_errors_to_host(std::span<float> worker, std::span<float> server) const;    // enqueued
    void copy_errors_from_host(std::span<const float> worker, std::span<const float> server);  // waits

    // Memory of the worker's errors, (elements) floats where every rank is a worker, for another use before
    // set_active().
    std::span<float> error_memory() const;

private:
    struct Bucket {
        ShardRange flat, stretch;
        kernels::OnebitLayout layout;
        std::vector<std::int64_t> ends{};                        // of groups; none: one
        // Where its own begin in the arrays: the first four of one place's buckets, the others of all.
        std::size_t error = 0, served = 0, message = 0, reply = 0, replies = 0, active = 0;
        std::size_t tile = 0, group = 0, served_tile = 0, served_group = 0;
        std::size_t tiles = 0, groups = 0, served_tiles = 0, served_groups = 0;
    };
    struct Sizes {  // of one place's, and of all
        std::size_t error = 0, served = 0, message = 0, reply = 0, replies = 0, active = 0;
    };
    // In the order of stretches, and within them of places.
    static std::vector<Bucket> cut(const ParameterTable& table, int workers, int places, OnebitScale scale,
                                   Sizes& sizes);
    void make_plans(std::span<const std::uint32_t> active);
    void compress(const Bucket& bucket, const Input& input);
    void serve(const Bucket& bucket);
    // The bucket of a stretch that is this rank's.
    std::size_t stretches() const { return buckets_.size() / std::size_t(places_); }
    const Bucket& own(std::size_t stretch) const {
        return buckets_[stretch * std::size_t(places_) + std::size_t(place_)];
    }
    template <class Worker, class Server> void for_errors(Worker&& worker, Server&& server) const;
    // Stretches in the order of the flat array.
    std::vector<std::size_t> ascending() const;
    std::size_t words(const Bucket& bucket) const { return std::size_t(bucket.layout.message_words()); }
    template <class T> std::span<T> messages_in(std::span<T> all, const Bucket& bucket) const {
        return all.subspan(bucket.message, words(bucket) * std::size_t(bucket.layout.ranks));
    }
    // Of one place, or of `places` from that on.
    std::span<std::uint32_t> replies_in(const Bucket& bucket, int places = 1) const {
        return replies_.span().subspan(bucket.replies, words(bucket) * std::size_t(bucket.layout.ranks * places));
    }
    std::span<const std::uint32_t> active_in(const Bucket& bucket) const {
        return active_.span().subspan(bucket.active, std::size_t(bucket.layout.padded() / 32));
    }
    std::span<float> node_sum(const Bucket& bucket) const {
        return node_sums_.span().subspan(bucket.error, std::size_t(bucket.flat.size));
    }

    Context& context_;
    OnebitRanks ranks_;
    int rank_, place_, places_;
    OnebitScale scale_;
    std::int64_t elements_;
    Sizes sizes_{};
    std::vector<Bucket> buckets_;
    device::Array<float> errors_, server_errors_, sums_, node_sums_;
    device::Array<std::uint32_t> messages_, received_, replies_, reply_, active_;
    device::Array<kernels::OnebitTile> tiles_, served_tiles_;
    device::Array<kernels::OnebitGroup> groups_, served_groups_;
    device::Array<double> partial_;  // of the largest bucket
    device::Array<std::int32_t> finite_;
    std::vector<CommEvent> summed_, sent_, answered_, shared_;
    CommEvent last_across_{}, last_within_{};
};

}  // namespace llmc
