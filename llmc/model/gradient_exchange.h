// gradient_exchange.h - the gradients of a step: the memory that the backward pass writes, the reduction over ranks,
// and the result for the optimizer
//
// One subclass per reduction policy (gradient_policies.cpp), selected by make_gradient_exchange():
//
//   stage 0   stores all gradients; in the last micro-batch every bucket is all-reduced, unless gradients stay local;
//             but whole matrices (gradient_buckets.h), at every stage, are reduced to their owners
//   stage 1   the same with reduce-scatter: afterwards a rank has the sum of its shards
//   stage 2   every bucket of every micro-batch is reduce-scattered from a working buffer and added to this rank's
//             shards, in fp32; memory: the shards, two buffers for blocks and one for the embeddings
//
// The reduction of a bucket starts when its gradients are enqueued, overlapped with the rest of the backward pass. It
// computes sums over ranks, not means: every token weighs 1 / positions of the whole step on every rank.
//
// At every stage a rank computes the squared norms of its own shards only, and the rows of these sums are gathered
// (step_sums.h): so stages 0 and 1 are bit-identical, and every rank makes the same decisions.
//
// Streams. The memory of a bucket belongs to the communicator from its group_begin(), after the kernels that write the
// bucket, compute its norm and round it, to the wait() for it: in finish(), or at stage 2 in the open() of the next
// bucket in the same working buffer. The next forward pass waits for the optimizer's all-gather of parameters
// (model_weights.h).
#pragma once
#include <memory>

#include "llmc/model/step_sums.h"

namespace llmc {

class GradientExchange {
public:
    struct Settings {
        Sharding sharding{};           // among the ranks of a worker
        // Until leave_world() every rank gets the sums over all ranks, whose norms have this sharding. Not at stage 2.
        std::optional<Sharding> world{};
        SmallBatches small_batches = SmallBatches::none;
        bool reduce_in_bf16 = false;  // the type of the reduction; everything else is fp32
        bool may_stay_local = false;  // gives LocalGradients
    };
    virtual ~GradientExchange();  // waits for groups in progress
    GradientExchange(const GradientExchange&) = delete;
    GradientExchange& operator=(const GradientExchange&) = delete;

    // From the next step on only the ranks of a worker sum their gradients.
    void leave_world();
    // How many workers make local steps: 1 until then.
    int workers() const { return summing_->workers; }

    // Call it before each micro-batch; the first one starts a step.
    void begin(const MicroStep& micro) { summing_->sums.begin(micro); }
    // The sum of the losses of this rank's micro-batches.
    std::span<double> loss_sum() const { return sums().loss_sum(); }

    // ---- for the backward pass, bucket by bucket, the embeddings' bucket last
    const GradientBuckets& buckets() const { return buckets_; }
    // The memory for the gradient of a tensor, from open() to complete() of its bucket.
    std::span<float> gradient(int tensor) const;
    // Whether to add the gradient to the memory's contents, the sum of the step's earlier micro-batches.
    virtual bool accumulate() const = 0;
    // Call it before a bucket's first gradient. On return: work enqueued on the compute stream may write the gradients.
    virtual void open(int bucket) = 0;
    // Call it after the kernels that write a bucket's gradients are enqueued. On return: its norm as part of a small
    // batch is enqueued, and if this micro-batch reduces it, its group has started.
    void complete(int bucket);

    // ---- for the optimizer
    // Call it after the last micro-batch. On return: work enqueued on the compute stream sees reduced() and
    // sums().rank_sums().
    void finish();
    // The reduced gradient of the elements that this rank owns, or its local one, accumulated with weight
    // 1 / positions; valid until the next begin(). In an array of all parameters, or at stage 2 of what this rank owns.
    virtual std::span<float> reduced() const = 0;
    std::span<float> reduced(const OwnedShard& shard) const {
        return buckets_.sharding().shards_gradients() ? shard.owned.of(reduced()) : shard.flat.of(reduced());
    }
    const StepSums& sums() const { return summing_->sums; }

protected:
    // `written_elements`: the size of the memory for the backward pass. The context must outlive the exchange.
    GradientExchange(const ParameterTable& table, const Settings& settings, Context& context,
                     std::int64_t written_elements);

    // The memory that the backward pass writes, all of it or one bucket; and its bf16 copy, if reduced in bf16.
    std::span<float> written() const { return written_.span(); }
    std::span<float> written(int bucket) const { return bucket_of(written_.span(), bucket); }
    std::span<kernels::bf16> rounded() const { return rounded_.span(); }
    std::span<kernels::bf16> rounded(int bucket) const { return bucket_of(rounded_.span(), bucket); }
    bool reduces_in_bf16() const { return rounded_.size() > 0 && (workers() == 1 || ranks().size() > 1); }
    // The elements of a bucket's part whose sums this rank gets, in the bucket.
    const ElementRange& summed(const BucketPart& part) const {
        const bool all = in_world_ || (!part.matrix && !buckets_.sharding().shards_state());
        return all ? part.whole : part.shard;
    }
    // Enqueue copies between the written memory and its bf16 copy, if there is one.
    void round(const ElementRange& range);
    void widen(const ElementRange& range);
    // Starts a group that computes the sum of a bucket over ranks, in the type of the reduction, in what this rank owns
    // of it. On return: it is in progress.
    CommEvent reduce_to_owners(int bucket);
    Communicator& ranks() const { return summing_->ranks; }  // that sum gradients
    const MicroStep& micro() const { return sums().micro(); }
    // Called by finish() before it gathers the rows of sums: finishes all buckets, and computes the norms of shards.
    virtual void take_norms();
    void add_sketched(std::span<const float> gradient, std::uint32_t draw) {
        summing_->sums.add_sketched(gradient, draw);
    }

    Context& context_;

private:
    // ---- implemented by a policy
    // The offset of a bucket in the memory that the backward pass writes.
    virtual std::int64_t offset(int bucket) const = 0;
    // Whether the buckets of this micro-batch are reduced.
    virtual bool reduces() const = 0;
    // Starts the reduction of a bucket. On return: it is in progress.
    virtual void reduce(int bucket) = 0;
    // Called once per bucket, after the last micro-batch. On return: the compute stream sees reduced() of its shard,
    // and the communicator no longer uses its memory.
    virtual void finish_bucket(int bucket) = 0;

    template <class T> std::span<T> bucket_of(std::span<T> all, int bucket) const {
        return ElementRange{offset(bucket), buckets_[bucket].flat.size}.of(all);
    }

    // What sums gradients.
    struct Summing {
        Summing(const ParameterTable& table, const Sharding& sharding, SmallBatches small_batches, int of_workers,
                Communicator& of_ranks, Context& context)
            : workers(of_workers),
              ranks(of_ranks),
              buckets(table, sharding),
              sums(buckets, small_batches, of_ranks, context) {}
        int workers;
        Communicator& ranks;
        GradientBuckets buckets;  // as they are divided among these ranks
        StepSums sums;
    };

    const ParameterTable& table_;
    Settings settings_;
    GradientBuckets buckets_;
    bool in_world_;
    std::optional<Summing> summing_;
    device::Array<float> written_;
    device::Array<kernels::bf16> rounded_;  // the bf16 copy of written_, if reduced in bf16
    CommEvent last_{};
};

// What optimizers that exchange something else may do with gradients.
class LocalGradients {
public:
    // From the next step on, every rank keeps its own gradients, except the `summed` ranges of the flat array, whole
    // tensors; the norm of the gradients' sum is estimated from a sketch with this draw (step_sums.h). All ranks pass
    // the same values, and a new draw before every step.
    virtual void stay_local(std::uint32_t draw, std::span<const ElementRange> summed) = 0;
    // For gradients that stayed local, after finish(): starts the sum of a range of the flat array over the ranks of
    // `among`, a part of the run's ranks. This rank's shard of the sum goes to `mine`, separate memory. On return: the
    // sum is in progress.
    virtual CommEvent begin_sum(Communicator& among, const ElementRange& range, std::span<float> mine) = 0;
    // On return: the compute stream sees the sum.
    virtual void end_sum(Communicator& among, CommEvent event, const ElementRange& range, std::span<float> mine) = 0;

protected:
    ~LocalGradients() = default;
};

// Throws Error unless the settings of the exchange allow it.
LocalGradients& local_gradients(GradientExchange& exchange);

// The policy of the stage. The context must outlive it. Throws Error for small batches that the stage cannot provide.
std::unique_ptr<GradientExchange> make_gradient_exchange(const ParameterTable& table,
                                                         const GradientExchange::Settings& settings, Context& context);
// Device bytes, for the memory plan.
std::size_t gradient_bytes(const ParameterTable& table, const GradientExchange::Settings& settings);

}  // namespace llmc
