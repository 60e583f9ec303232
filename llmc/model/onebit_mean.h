// onebit_mean.h - the mean over ranks of a flat array at one bit an element, bucket by bucket over any communicator
//
// A bucket is one call of the primitive (kernels/onebit.h), with its own padding, which is masked, and scales. Buckets
// are pipelined: while the messages of one travel the next is compressed, and the one before served.
//
//   exchange()  compress and scales, all-to-all of messages;  serve and scales, all-gather of replies;  verdict
//   commit()    behind what reads exchanged(): the servers' errors
//
// Nothing is kept before the verdict over all buckets: that is the caller's, by onebit_settle (kernels/onebit_adam.h).
//
// Memory of a rank, for n elements on R ranks: 4 n worker errors, 8 n / R servers' errors and sums, n / 2 messages, and
// masks.
#pragma once
#include <vector>

#include "kernels/device/memory.h"
#include "kernels/onebit.h"
#include "llmc/model/gradient_buckets.h"

namespace llmc {

struct Context;

// Which elements share a scale: of a worker, all of a bucket; or those of a tensor, or 4096 neighbours, within a chunk.
// A server's scale is of its chunk, or of the same groups.
enum class OnebitScale { bucket, tensor, block };

class OnebitMean {
public:
    // The context must outlive it. Errors are 0 and no element takes part until set_active().
    OnebitMean(const ParameterTable& table, const Sharding& sharding, OnebitScale scale, Context& context);
    ~OnebitMean();  // waits for what is under way
    OnebitMean(const OnebitMean&) = delete;
    OnebitMean& operator=(const OnebitMean&) = delete;

    // Device bytes, for the memory plan.
    static std::size_t bytes(const ParameterTable& table, const Sharding& sharding, OnebitScale scale);

    // The elements that take part: a bit for each of the flat array, element i at bit i % 32 of word i / 32. The same
    // on all ranks. All errors become 0. Waits.
    void set_active(std::span<const std::uint32_t> active);

    struct Input {
        std::span<float> values;  // flat: in this rank's gradient, out what compensates (OnebitCompress)
        std::span<const float> momentum, second_moment = {};  // flat, or none
        std::span<const float> gradient_scale = {};           // (1), or none
        float momentum_weight = 0, gradient_weight = 1, eps = 0;
    };
    // On return: what is enqueued on the compute stream sees exchanged(), and finite() with this verdict ANDed in. The
    // values must stay as they are until commit().
    void exchange(const Input& input);
    std::span<std::int32_t> finite() const { return finite_.span(); }

    // What a rank needs of a bucket to take its mean and its error.
    struct Exchanged {
        kernels::OnebitLayout layout;
        std::span<const kernels::OnebitTile> tiles;
        ShardRange flat;                  // where the bucket lies
        std::span<float> error;
        std::span<const std::uint32_t> messages, replies, active;
        bool one;
    };
    std::size_t buckets() const { return buckets_.size(); }
    std::size_t tiles() const { return tiles_.size(); }  // of all buckets
    Exchanged exchanged(std::size_t bucket) const;
    void commit();

    // The errors, for checkpoints: this rank's as a worker, those of all buckets one after the other; and as the server
    // of a chunk of every bucket, which are these stretches of the flat array, without padding.
    std::vector<ShardRange> served() const;
    std::int64_t served_elements() const;
    void copy_errors_to_host(std::span<float> worker, std::span<float> server) const;    // enqueued
    void copy_errors_from_host(std::span<const float> worker, std::span<const float> server);  // waits

    // Memory of the worker's errors, (elements) floats, for another use before set_active().
    std::span<float> error_memory() const;

private:
    struct Bucket {
        ShardRange flat;
        kernels::OnebitLayout layout;
        std::vector<std::int64_t> ends{};                        // of groups; none: one
        std::size_t error = 0, served = 0, message = 0, reply = 0, active = 0;  // where its own begin in the arrays
        std::size_t tile = 0, group = 0, served_tile = 0, served_group = 0;
        std::size_t tiles = 0, groups = 0, served_tiles = 0, served_groups = 0;
    };
    struct Sizes {
        std::size_t error = 0, served = 0, message = 0, reply = 0, active = 0;
    };
    static std::vector<Bucket> cut(const ParameterTable& table, const Sharding& sharding, OnebitScale scale,
                                   Sizes& sizes);
    void make_plans(std::span<const std::uint32_t> active);
    void compress(const Bucket& bucket, const Input& input);
    void serve(const Bucket& bucket);
    std::size_t words(const Bucket& bucket) const { return std::size_t(bucket.layout.message_words()); }
    template <class T> std::span<T> messages_in(std::span<T> all, const Bucket& bucket) const {
        return all.subspan(bucket.message, words(bucket) * std::size_t(bucket.layout.ranks));
    }
    std::span<const std::uint32_t> active_in(const Bucket& bucket) const {
        return active_.span().subspan(bucket.active, std::size_t(bucket.layout.padded() / 32));
    }

    Context& context_;
    int rank_;
    OnebitScale scale_;
    std::int64_t elements_;
    Sizes sizes_{};
    std::vector<Bucket> buckets_;
    device::Array<float> errors_, server_errors_, sums_;
    device::Array<std::uint32_t> messages_, received_, replies_, reply_, active_;
    device::Array<kernels::OnebitTile> tiles_, served_tiles_;
    device::Array<kernels::OnebitGroup> groups_, served_groups_;
    device::Array<double> partial_;  // of the largest bucket
    device::Array<std::int32_t> finite_;
    std::vector<CommEvent> sent_, answered_;
    CommEvent last_{};
};

}  // namespace llmc
