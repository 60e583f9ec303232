// step_sums.h - the sums of a step that are gathered from all ranks: loss, counts, the gradient's norm, and the norms
// of the small batches that the noise scale compares with the whole step
//
// Every rank fills a row (RankSums in grad_norm.h), and all rows are gathered. Everything is enqueued on the compute
// stream, except the counts, which are known on the host.
#pragma once
#include <optional>
#include <vector>

#include "kernels/device/memory.h"
#include "kernels/grad_norm.h"
#include "llmc/model/gradient_buckets.h"

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

// The tiles in which squares are summed: of whole buckets, or of this rank's shards of their parts. A tile's first
// element is relative to the start of the bucket; of a shard, to the start of the array of reduced gradients: the flat
// array, or at stage 2 that of what this rank owns.
enum class TilesOf { buckets, shards };
struct NormTiles {
    NormTiles(const GradientBuckets& buckets, TilesOf of);
    std::vector<kernels::NormTile> tiles;   // bucket by bucket
    std::vector<std::size_t> bucket_start;  // (buckets + 1)
};

// Device bytes that StepSums::add_sketched() allocates in its first call.
std::size_t sketch_bytes();

class StepSums {
public:
    // `ranks`: those whose rows are gathered, which the buckets are divided among. Ranks and context must outlive it.
    StepSums(const GradientBuckets& buckets, SmallBatches small_batches, Communicator& ranks, Context& context);

    // Call it before each micro-batch; the first one starts a step with a row of zeros.
    void begin(const MicroStep& micro);
    const MicroStep& micro() const { return micro_; }
    // The sum of the losses of this rank's micro-batches.
    std::span<double> loss_sum() const { return {&row()->loss_sum, 1}; }

    // Whether the gradient of a small batch is complete with this micro-batch. If so, pass it to add_small_batch(),
    // each bucket once, the embeddings' bucket last. `rounded`, of the same size, receives the gradient in bf16, unless
    // empty.
    bool small_batch_ends() const;
    void add_small_batch(int bucket, std::span<const float> gradient, std::span<kernels::bf16> rounded);

    // Call it after the last micro-batch, for every bucket: computes the norm of this rank's shards of it. `reduced`:
    // the reduced gradients of all buckets, in the flat array, or at stage 2 in one of what this rank owns.
    void add_reduced(int bucket, std::span<const float> reduced);
    // Or, if every rank keeps its own gradient: computes the norm of the sum over ranks of sketches (kernels/sketch.h),
    // an estimate whose square has a relative deviation of 1.1 %. Waits for the ranks' sketches on the compute stream.
    void add_sketched(std::span<const float> gradient, std::uint32_t draw);
    // Then starts the gather of the rows. On return it is in progress; until the event the rows belong to the
    // communicator.
    CommEvent gather();
    std::span<const kernels::RankSums> rank_sums() const { return rank_sums_.span(); }  // by rank

private:
    // On the host and the device.
    struct Tiles {
        Tiles(NormTiles of, device::StreamRef stream)
            : plan(std::move(of)),
              range{0, std::int32_t(plan.tiles.size())},
              tiles(plan.tiles, stream),
              all(range, stream) {}
        NormTiles plan;
        std::vector<std::int32_t> range;
        device::Array<kernels::NormTile> tiles;
        device::Array<std::int32_t> all;  // {0, tiles}: for range_sums()
    };
    kernels::RankSums* row() const { return rank_sums_.span().data() + ranks_.rank(); }
    // Allocated by the first step that needs it: the sketch (kernels::kSketchColumns, then zeros) and working memory.
    struct SketchMemory {
        device::Array<float> sketch, scratch;
        device::Array<kernels::NormTile> tiles;  // of this rank's shard
        device::Array<double> partial;
        device::Array<std::int32_t> all;
    };
    void take_norms(const Tiles& of, int bucket, std::span<const float> values, std::span<kernels::bf16> rounded);

    Context& context_;
    Communicator& ranks_;
    SmallBatches small_batches_;
    int embeddings_;
    Tiles bucket_tiles_, shard_tiles_;
    device::Array<double> partial_;    // for bucket tiles or shard tiles, one kind at a time
    device::Array<kernels::RankSums> rank_sums_;
    MicroStep micro_{};
    kernels::RankCounts counts_{};
    bool sketched_ = false;
    std::optional<SketchMemory> sketch_;
};

}  // namespace llmc
