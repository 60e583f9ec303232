// step_sums.cpp - computes the norms of buckets and shards, and gathers the rows of all ranks
#include "llmc/model/step_sums.h"

#include <algorithm>

#include "kernels/base/error.h"
#include "kernels/sketch.h"
#include "llmc/model/context.h"

namespace llmc {
namespace {

constexpr std::int64_t kSketchSize = round_up(kernels::kSketchColumns, kShardMultiple);

}  // namespace

NormTiles::NormTiles(const GradientBuckets& buckets, TilesOf of) {
    for (const GradientBucket& bucket : buckets.all()) {
        bucket_start.push_back(tiles.size());
        if (of == TilesOf::buckets) kernels::append_tiles(tiles, 0, bucket.flat.size);
        else
            for (const BucketPart& part : bucket.parts)
                kernels::append_tiles(tiles, buckets.sharding().shards_gradients()
                                                 ? part.offset
                                                 : bucket.flat.first + part.shard.first, part.shard.size);
    }
    bucket_start.push_back(tiles.size());
}

StepSums::StepSums(const GradientBuckets& buckets, SmallBatches small_batches, Communicator& ranks, Context& context)
    : context_(context),
      ranks_(ranks),
      small_batches_(small_batches),
      embeddings_(buckets.embeddings()),
      bucket_tiles_(NormTiles(buckets, TilesOf::buckets), context.stream),
      shard_tiles_(NormTiles(buckets, TilesOf::shards), context.stream),
      partial_(std::max(bucket_tiles_.tiles.size(), shard_tiles_.tiles.size())),
      rank_sums_(std::size_t(ranks.size())) {
    rank_sums_.zero(context.stream);
}

void StepSums::begin(const MicroStep& micro) {
    require(micro.valid_targets >= 0, "the valid targets of a micro-batch", micro.valid_targets, "at least 0");
    micro_ = micro;
    if (micro.is_first()) {
        counts_ = {};
        sketched_ = false;
        device::fill_zero(row(), sizeof(kernels::RankSums), context_.stream);
    }
    counts_.valid_targets += micro.valid_targets;
}

bool StepSums::small_batch_ends() const {
    switch (small_batches_) {
        case SmallBatches::none: return false;
        case SmallBatches::ranks: return micro_.is_last();
        case SmallBatches::first_micro_batches: return micro_.is_first();
        case SmallBatches::micro_batches: break;
    }
    return true;
}

void StepSums::take_norms(const Tiles& of, int bucket, std::span<const float> values,
                          std::span<kernels::bf16> rounded) {
    const std::size_t first = of.plan.bucket_start[std::size_t(bucket)],
                      count = of.plan.bucket_start[std::size_t(bucket) + 1] - first;
    kernels::squared_norms({.partial = partial_.span().subspan(first, count), .values = values,
                            .tiles = of.tiles.span().subspan(first, count), .rounded = rounded}, context_.stream);
}

void StepSums::add_small_batch(int bucket, std::span<const float> gradient, std::span<kernels::bf16> rounded) {
    take_norms(bucket_tiles_, bucket, gradient, rounded);  // the tiles cover the bucket, gaps included
    const std::int64_t tokens = small_batches_ == SmallBatches::ranks ? counts_.valid_targets : micro_.valid_targets;
    if (bucket != embeddings_ || tokens == 0) return;
    kernels::range_sums({.sums = {&row()->small_norms, 1}, .partial = partial_.span(),
                         .range_start = bucket_tiles_.all.span(), .factor = 1 / double(tokens), .accumulate = true},
                        context_.stream);
    counts_.small_tokens += tokens;
    counts_.small_batches += 1;
}

void StepSums::add_reduced(int bucket, std::span<const float> reduced) {
    take_norms(shard_tiles_, bucket, reduced, {});
}

std::size_t sketch_bytes() {
    return (std::size_t(kSketchSize) + kernels::sketch_scratch()) * sizeof(float);
}

void StepSums::add_sketched(std::span<const float> gradient, std::uint32_t draw) {
    const device::StreamRef stream = context_.stream;
    const ElementRange shard = shard_of(kSketchSize, ranks_.rank(), ranks_.size());
    if (!sketch_) {
        std::vector<kernels::NormTile> tiles;
        kernels::append_tiles(tiles, 0, shard.size);
        const std::vector<std::int32_t> all{0, std::int32_t(tiles.size())};
        const device::SyncIfThrown guard(stream);
        sketch_.emplace(SketchMemory{.sketch = device::Array<float>(kSketchSize),
                                     .scratch = device::Array<float>(kernels::sketch_scratch()),
                                     .tiles = {tiles, stream}, .partial = device::Array<double>(tiles.size()),
                                     .all = {all, stream}});
        sketch_->sketch.zero(stream);
        device::sync(stream);
    }
    const std::span<float> sketch = sketch_->sketch.span();
    kernels::sketch({.sketch = sketch, .scratch = sketch_->scratch.span(), .values = gradient, .scale = 1,
                     .draw = draw}, stream);
    const std::span<float> mine = shard.of(sketch);
    ranks_.group_begin(stream);
    ranks_.reduce_scatter<float>(mine, sketch);
    ranks_.wait(stream, ranks_.group_end());
    kernels::squared_norms({.partial = sketch_->partial.span(), .values = mine, .tiles = sketch_->tiles.span()},
                           stream);
    kernels::range_sums({.sums = {&row()->norm, 1}, .partial = sketch_->partial.span(),
                         .range_start = sketch_->all.span()}, stream);
    sketched_ = true;
}

CommEvent StepSums::gather() {
    if (!sketched_)
        kernels::range_sums({.sums = {&row()->norm, 1}, .partial = partial_.span(),
                             .range_start = shard_tiles_.all.span()}, context_.stream);
    kernels::put_counts(row(), counts_, context_.stream);
    ranks_.group_begin(context_.stream);
    ranks_.all_gather<std::byte>(std::as_writable_bytes(rank_sums_.span()),
                                 std::as_writable_bytes(std::span(row(), 1)));
    return ranks_.group_end();
}

}  // namespace llmc
