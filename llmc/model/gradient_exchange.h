// gradient_exchange.h - the gradients of a step: where the backward pass leaves them, how the ranks add them up, and
// what the optimizer finds
//
// One subclass for each way of reducing (gradient_policies.cpp), chosen by make_gradient_exchange():
//
//   stage 0   all gradients are kept; in the last micro-batch every bucket is all-reduced, unless gradients stay local
//   stage 1   the same, reduce-scattered: afterwards a rank has the sum of its shards
//   stage 2   every bucket of every micro-batch is reduce-scattered out of a working buffer and added to this rank's
//             shards, in fp32; only the shards, two buffers for blocks and one for the embeddings exist
//
// A bucket's reduction begins when its gradients have been enqueued and runs beside the rest of the backward pass. Sums
// are over ranks, never means: a token weighs 1 / positions of the whole step on every rank.
//
// At every stage a rank takes the squared norm of its own shards only, and all rows of these sums are gathered
// (step_sums.h): so stages 0 and 1 have the same bits, and every rank decides alike.
//
// Streams. The memory of a bucket belongs to the communicator from its group_begin() to the wait() for it. All places:
//
//   complete()  begins its group, after the kernels that write the bucket and those that take its norm and round it
//               before the reduction
//   finish()    waits for each group before the norm of its shard, so that the optimizer, and the next step's backward
//               pass, come after; then begins the group of the rows of sums and waits for it. Where gradients stay
//               local: the groups of the sketch and of the stretches that are summed, and the waits for them
//   begin_sum() begins the group of a stretch; end_sum() waits for it
//   open()      stage 2: waits for the group that used the working buffer last, before the next bucket's gradients are
//               written into it
//   the destructor waits on the host for what is still under way
//
// The optimizer's all-gather of parameters is waited for in the next forward pass (model.h).
#pragma once
#include <memory>

#include "llmc/model/step_sums.h"

namespace llmc {

class GradientExchange {
public:
    struct Settings {
        Sharding sharding{};
        SmallBatches small_batches = SmallBatches::none;
        bool reduce_in_bf16 = false;  // what travels; everything else is fp32
        bool may_stay_local = false;  // stay_local() will be called, maybe
    };
    virtual ~GradientExchange();  // waits for what is under way
    GradientExchange(const GradientExchange&) = delete;
    GradientExchange& operator=(const GradientExchange&) = delete;

    // Before each micro-batch; the first begins a step.
    void begin(const MicroStep& micro) { sums_.begin(micro); }
    // Where the losses of this rank's micro-batches add up.
    std::span<double> loss_sum() const { return sums_.loss_sum(); }

    // ---- for the backward pass, bucket by bucket, the embeddings' last
    const GradientBuckets& buckets() const { return buckets_; }
    // Where the gradient of a tensor is written, from open() to complete() of its bucket.
    std::span<float> gradient(int tensor) const;
    // Whether it is added to what lies there, the sum of the step's earlier micro-batches.
    virtual bool accumulate() const = 0;
    // Before a bucket's first gradient. On return: what is enqueued on the compute stream may write the gradients.
    virtual void open(int bucket) = 0;
    // After the kernels that write a bucket's gradients were enqueued. On return: its norm as part of a small batch is
    // enqueued, and if it is reduced with this micro-batch, its group is under way.
    void complete(int bucket);

    // ---- for the optimizer
    // After the last micro-batch. On return: what is enqueued on the compute stream sees reduced() and
    // sums().rank_sums().
    void finish();
    // For the next step and those after it: gradients stay each rank's own, but for the `summed` stretches of the flat
    // array, at multiples of kTensorAlignment; the norm of their sum is estimated from a sketch with this draw
    // (step_sums.h). Ranks give the same, and a new draw before every step. Throws Error unless the settings allow it.
    virtual void stay_local(std::uint32_t draw, std::span<const ShardRange> summed);
    // Of gradients that stayed local, after finish(): begins their sum over the ranks of `among`, a part of the run's,
    // in a stretch of the flat array. This rank's shard of it goes to `mine`, memory apart. On return: it is under way.
    virtual CommEvent begin_sum(Communicator& among, const ShardRange& stretch, std::span<float> mine);
    // On return: the compute stream sees the sum.
    virtual void end_sum(Communicator& among, CommEvent event, const ShardRange& stretch, std::span<float> mine);
    // The reduced gradient of what this rank owns, or its own, accumulated with weight 1 / positions, until the next
    // begin().
    virtual std::span<float> reduced(const OwnedShard& shard) const = 0;
    const StepSums& sums() const { return sums_; }

protected:
    // `written_elements`: how many gradients the backward pass needs room for. The context must outlive it.
    GradientExchange(const ParameterTable& table, const Settings& settings, Context& context,
                     std::int64_t written_elements);

    // What the backward pass writes into: all of it, and a bucket's part; and that part in bf16, where bf16 travels.
    std::span<float> written() const { return written_.span(); }
    std::span<float> written(int bucket) const { return in_place(written_.span(), bucket); }
    std::span<kernels::bf16> rounded() const { return rounded_.span(); }
    std::span<kernels::bf16> rounded(int bucket) const { return in_place(rounded_.span(), bucket); }
    bool travels_in_bf16() const { return rounded_.size() > 0; }
    // A group that leaves the sum over ranks, in the type that travels, in stretches of what is written or in this
    // rank's shard of a bucket. On return: it is under way.
    CommEvent all_reduce(std::span<const ShardRange> ranges);
    CommEvent reduce_scatter(int bucket);
    const MicroStep& micro() const { return sums_.micro(); }
    // What finish() waits for before it gathers the rows of sums: settles all buckets, and takes the norms of shards.
    virtual void take_norms();
    void add_sketched(std::span<const float> gradient, std::uint32_t draw) { sums_.add_sketched(gradient, draw); }

    Context& context_;

private:
    // ---- of a policy
    // Where a bucket begins in the memory that the backward pass writes into.
    virtual std::int64_t place(int bucket) const = 0;
    // Whether the buckets of this micro-batch are reduced.
    virtual bool reduces() const = 0;
    // Begins the reduction of a bucket. On return: it is under way.
    virtual void reduce(int bucket) = 0;
    // Once a bucket, after the last micro-batch. On return: the compute stream sees reduced() of its shard, and the
    // communicator has left its memory.
    virtual void settle(int bucket) = 0;

    template <class Enqueue> CommEvent in_group(std::span<const ShardRange> ranges, Enqueue&& enqueue);
    template <class T> std::span<T> in_place(std::span<T> all, int bucket) const {
        return all.subspan(std::size_t(place(bucket)), std::size_t(buckets_[bucket].size));
    }

    const ParameterTable& table_;
    GradientBuckets buckets_;
    StepSums sums_;
    device::Array<float> written_;
    device::Array<kernels::bf16> rounded_;  // as written_, where bf16 travels
    CommEvent last_{};
};

// The policy of the stage. The context must outlive it. Throws Error for small batches that this stage never has.
std::unique_ptr<GradientExchange> make_gradient_exchange(const ParameterTable& table,
                                                         const GradientExchange::Settings& settings, Context& context);
// Device bytes, for the memory plan.
std::size_t gradient_bytes(const ParameterTable& table, const GradientExchange::Settings& settings);

}  // namespace llmc
