// gradient_exchange.h - the gradients of a step: where the backward pass leaves them, how the ranks add them up, and
// their norms
//
//   stage 0   all gradients are shard_offset; in the last micro-batch every bucket is all-reduced
//   stage 1   the same, reduce-scattered: afterwards a rank has the sum of its shards
//   stage 2   every bucket of every micro-batch is reduce-scattered out of a working buffer and added to this rank's
//             shards, in fp32; only the shards, two buffers for blocks and one for the tables exist
// A bucket's reduction begins when its gradients have been enqueued and runs beside the rest of the backward pass. Sums
// are over ranks, never means: a token weighs 1 / positions of the whole step on every rank.
//
// At every stage a rank takes the squared norm of its own shards only, and all rows of these sums are gathered: so
// stages 0 and 1 have the same bits, and every rank decides alike.
//
// Streams. The memory of a bucket belongs to the communicator from its group_begin() to the wait() for it. These are
//   all the places:
//   complete()  begins its group, after the kernels that write the bucket and those that take its norm and round it
//               before the reduction
//   finish()    waits for each group before the norm of its shard, so that the optimizer, and the next step's backward
//               pass, come after
//   open()      stage 2: waits for the group that used the working buffer last, before the next bucket's gradients are
//               written into it
// The optimizer's all-gather of parameters is waited for in the next forward pass (model.h).
#pragma once
#include "kernels/device/memory.h"
#include "llmc/model/gradient_buckets.h"

namespace llmc {

struct Context;

// The small batches whose gradients the noise scale compares with that of the whole step (noise_scale.h).
enum class SmallBatches { none, ranks, first_micro_batches, micro_batches };

struct MicroStep {
    int index = 0, count = 1;        // of the step's micro-batches
    std::int64_t valid_targets = 0;  // of this rank's
};

class GradientExchange {
public:
    struct Settings {
        Sharding sharding{};
        SmallBatches small_batches = SmallBatches::none;
        bool reduce_in_bf16 = false;  // what travels; everything else is fp32
    };
    // The context must outlive it. Throws Error for small batches that this stage never has.
    GradientExchange(const ParameterTable& table, const Settings& settings, Context& context);
    ~GradientExchange();  // waits for what is under way
    GradientExchange(const GradientExchange&) = delete;
    GradientExchange& operator=(const GradientExchange&) = delete;

    // Before each micro-batch; the first begins a step.
    void begin(const MicroStep& micro);
    // Where the losses of this rank's micro-batches add up.
    std::span<double> loss_sum() const { return row().subspan(kernels::kLossSum, 1); }

    // For the backward pass. open() comes before a bucket's first gradient, complete() after its last; accumulate():
    // gradients are added.
    const GradientBuckets& buckets() const { return buckets_; }
    std::span<float> gradient(int tensor) const;
    bool accumulate() const { return stage() < 2 && micro_.index > 0; }
    void open(int bucket);
    void complete(int bucket);

    // After the last micro-batch: enqueues what makes the reduced shards and all ranks' sums ready on the compute
    // stream.
    void finish();
    std::span<const double> rank_sums() const { return rank_sums_.span(); }  // a row of each rank (grad_norm.h)
    std::size_t modules() const { return modules_.names.size(); }
    const std::vector<std::string>& module_names() const { return modules_.names; }
    // The reduced gradient of this rank's shard of a bucket, accumulated with weight 1 / positions; at stage 0 all of
    // the flat array is reduced.
    std::span<float> shard(int bucket) const;
    std::span<float> whole() const { return gradients_.span(); }  // stages 0 and 1
    int stage() const { return settings_.sharding.stage; }

private:
    struct Pending {
        int bucket = -1;  // none
        bool accumulate = false;
        CommEvent reduced{};
    };
    std::size_t buffer_of(int bucket) const { return bucket == buckets_.embeddings() ? 2 : std::size_t(bucket) % 2; }
    template <class T> std::span<T> memory(std::span<T> all, int bucket) const;
    std::span<double> row() const;
    std::span<double> norms(int which) const {
        return row().subspan(kernels::kFirstNorm + std::size_t(which) * modules(), modules());
    }
    bool small_batch_ends() const;
    void take_norms(const device::Array<kernels::NormTile>& tiles, const NormTiles& plan, int bucket,
                    std::span<const float> values, std::span<kernels::bf16> rounded = {});
    CommEvent reduce(int bucket);
    template <class T> CommEvent reduce(int bucket, std::span<T> whole);
    void receive(int bucket, bool accumulate);
    void settle(Pending& pending);

    Context& context_;
    Settings settings_;
    const ParameterTable& table_;
    GradientBuckets buckets_;
    NormModules modules_;
    NormTiles all_plan_, shard_plan_;
    device::Array<kernels::NormTile> all_tiles_, shard_tiles_;
    device::Array<std::int32_t> all_modules_, shard_modules_;
    device::Array<float> gradients_, shards_;  // shards_: stage 2, then gradients_ are the working buffers
    device::Array<kernels::bf16> sent_;      // as gradients_, where bf16 travels
    device::Array<double> partial_, rank_sums_;

    MicroStep micro_{};
    kernels::RankCounts counts_{};
    std::vector<CommEvent> reduced_;       // of every bucket
    Pending pending_[3];                   // of every working buffer
    CommEvent last_{};
};

// Device bytes, for the memory plan.
std::size_t gradient_bytes(const ParameterTable& table, const GradientExchange::Settings& settings);

}  // namespace llmc
