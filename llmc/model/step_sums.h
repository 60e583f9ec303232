// step_sums.h - what the ranks tell each other of a step: loss, counts, the gradient's norm by module, and the norms of
// the small batches that the noise scale compares with the whole step
//
// Every rank fills a row (RankSums in grad_norm.h), and all rows are gathered. Everything is enqueued on the compute
// stream but the counts, which the host knows.
#pragma once
#include <optional>

#include "kernels/device/memory.h"
#include "llmc/model/norm_modules.h"

namespace llmc {

struct Context;

// The small batches whose gradients the noise scale compares with that of the whole step (noise_scale.h).
enum class SmallBatches { none, ranks, first_micro_batches, micro_batches };

struct MicroStep {
    int index = 0, count = 1;        // of the step's micro-batches
    std::int64_t valid_targets = 0;  // of this rank's

    bool is_first() const { return index == 0; }
    bool is_last() const { return index + 1 == count; }
};

// On the device, of what StepSums::add_sketched() keeps from its first call on.
std::size_t sketch_bytes();

class StepSums {
public:
    // The context must outlive it.
    StepSums(const ParameterTable& table, const GradientBuckets& buckets, const Sharding& sharding,
             SmallBatches small_batches, Context& context);

    // Before each micro-batch; the first begins a step with a row of zeros.
    void begin(const MicroStep& micro);
    const MicroStep& micro() const { return micro_; }
    // Where the losses of this rank's micro-batches add up.
    std::span<double> loss_sum() const { return {&row().header->loss_sum, 1}; }

    // Whether with this micro-batch the gradient of a small batch is complete. Then add_small_batch() takes it, each
    // bucket once and the embeddings' last. `rounded`, as long as the gradient, becomes the gradient in bf16; empty:
    // not wanted.
    bool small_batch_ends() const;
    void add_small_batch(int bucket, std::span<const float> gradient, std::span<kernels::bf16> rounded);

    // After the last micro-batch: takes the norm of this rank's shard of every bucket of the reduced gradient, ...
    void add_reduced(int bucket, std::span<const float> shard);
    // Or, where every rank keeps its own gradient: takes the norm of the sum over ranks of sketches (kernels/sketch.h),
    // an estimate with a relative deviation of its square of 1.1 %, for all modules together: the first one's norm
    // holds it. Waits for the ranks' sketches, on the compute stream.
    void add_sketched(std::span<const float> gradient, std::uint32_t draw);
    // ... and then gathers. On return: the rows are on their way, until the event they belong to the communicator.
    CommEvent gather();
    std::span<const double> rank_sums() const { return rank_sums_.span(); }  // a row of each rank, in their order

    std::size_t modules() const { return modules_.names.size(); }
    const std::vector<std::string>& module_names() const { return modules_.names; }

private:
    // The tiles of all modules, on host and device.
    struct Tiles {
        Tiles(NormTiles of, device::StreamRef stream)
            : plan(std::move(of)),
              tiles(plan.tiles, stream),
              module_start(plan.module_start, stream) {}
        NormTiles plan;
        device::Array<kernels::NormTile> tiles;
        device::Array<std::int32_t> module_start;
    };
    std::span<double> row_memory() const;
    kernels::RankSums row() const { return kernels::rank_sums(row_memory(), modules()); }
    // Made by the first step that needs it: (kernels::kSketchBuckets, then zeros), and what it takes.
    struct SketchMemory {
        device::Array<float> sketch, scratch;
        device::Array<kernels::NormTile> tiles;  // of this rank's shard
        device::Array<double> partial;
        device::Array<std::int32_t> module_start;
    };
    void take_norms(const Tiles& of, int bucket, std::span<const float> values, std::span<kernels::bf16> rounded);

    Context& context_;
    SmallBatches small_batches_;
    int rank_, ranks_, embeddings_;
    NormModules modules_;
    Tiles bucket_tiles_, shard_tiles_;
    device::Array<double> partial_;    // of the tiles of one kind at a time
    device::Array<double> rank_sums_;  // (ranks, rank_sums_size(modules))
    MicroStep micro_{};
    kernels::RankCounts counts_{};
    std::optional<SketchMemory> sketch_;
};

}  // namespace llmc
