// step_sums.h - the sums of a step that are gathered from all ranks: loss, counts, the gradient's norm by module, and
// the norms of the small batches that the noise scale compares with the whole step
//
// Every rank fills a row (RankSums in grad_norm.h), and all rows are gathered. Everything is enqueued on the compute
// stream, except the counts, which are known on the host.
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
    std::int64_t valid_targets = 0;  // of this rank's micro-batch

    bool is_first() const { return index == 0; }
    bool is_last() const { return index + 1 == count; }
};

// Device bytes that StepSums::add_sketched() allocates in its first call.
std::size_t sketch_bytes();

class StepSums {
public:
    // `ranks`: those whose rows are gathered, which the buckets are divided among. Ranks and context must outlive it.
    StepSums(const ParameterTable& table, const GradientBuckets& buckets, SmallBatches small_batches,
             Communicator& ranks, Context& context);

    // Call it before each micro-batch; the first one starts a step with a row of zeros.
    void begin(const MicroStep& micro);
    const MicroStep& micro() const { return micro_; }
    // The sum of the losses of this rank's micro-batches.
    std::span<double> loss_sum() const { return {&row().header->loss_sum, 1}; }

    // Whether the gradient of a small batch is complete with this micro-batch. If so, pass it to add_small_batch(),
    // each bucket once, the embeddings' bucket last. `rounded`, of the same size, receives the gradient in bf16, unless
    // empty.
    bool small_batch_ends() const;
    void add_small_batch(int bucket, std::span<const float> gradient, std::span<kernels::bf16> rounded);

    // Call it after the last micro-batch, for every bucket: computes the norm of this rank's shards of it. `reduced`:
    // the reduced gradients of all buckets, in the flat array, or at stage 2 in one of what this rank owns.
    void add_reduced(int bucket, std::span<const float> reduced);
    // Or, if every rank keeps its own gradient: computes the norm of the sum over ranks of sketches (kernels/sketch.h),
    // an estimate whose square has a relative deviation of 1.1 %. It is for all modules together and stored as the norm
    // of the first one. Waits for the ranks' sketches on the compute stream.
    void add_sketched(std::span<const float> gradient, std::uint32_t draw);
    // Then starts the gather of the rows. On return it is in progress; until the event the rows belong to the
    // communicator.
    CommEvent gather();
    std::span<const double> rank_sums() const { return rank_sums_.span(); }  // one row per rank, in rank order

    std::size_t modules() const { return modules_.names.size(); }
    const std::vector<std::string>& module_names() const { return modules_.names; }

private:
    // The tiles of all modules, on the host and the device.
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
    // Allocated by the first step that needs it: the sketch (kernels::kSketchColumns, then zeros) and working memory.
    struct SketchMemory {
        device::Array<float> sketch, scratch;
        device::Array<kernels::NormTile> tiles;  // of this rank's shard
        device::Array<double> partial;
        device::Array<std::int32_t> module_start;
    };
    void take_norms(const Tiles& of, int bucket, std::span<const float> values, std::span<kernels::bf16> rounded);

    Context& context_;
    Communicator& ranks_;
    SmallBatches small_batches_;
    int embeddings_;
    NormModules modules_;
    Tiles bucket_tiles_, shard_tiles_;
    device::Array<double> partial_;    // for bucket tiles or shard tiles, one kind at a time
    device::Array<double> rank_sums_;  // (ranks, rank_sums_size(modules))
    MicroStep micro_{};
    kernels::RankCounts counts_{};
    std::optional<SketchMemory> sketch_;
};

}  // namespace llmc
