// gradient_exchange.cpp - reductions of gradients over the ranks, bucket after bucket, and the sums of their norms
#include "llmc/model/gradient_exchange.h"

#include <algorithm>

#include "kernels/device/error.h"
#include "kernels/device/memory.h"
#include "kernels/gradient_copy.h"
#include "llmc/model/context.h"

namespace llmc {
namespace {

using kernels::bf16;

// Elements that gradients are written into: all, or at stage 2 the working buffers.
std::int64_t written_elements(const GradientBuckets& buckets, int stage) {
    return stage < 2 ? buckets[0].first + buckets[0].size
                     : 2 * buckets.largest_block() + buckets[buckets.embeddings()].size;
}

}  // namespace

GradientExchange::GradientExchange(const ParameterTable& table, const Settings& settings, Context& context)
    : context_(context),
      settings_(settings),
      table_(table),
      buckets_(table, settings.sharding),
      modules_(table, buckets_),
      all_plan_(modules_, buckets_, false),
      shard_plan_(modules_, buckets_, true),
      all_tiles_(all_plan_.tiles, context.stream),
      shard_tiles_(shard_plan_.tiles, context.stream),
      all_modules_(all_plan_.module_start, context.stream),
      shard_modules_(shard_plan_.module_start, context.stream),
      gradients_(std::size_t(written_elements(buckets_, stage()))),
      shards_(stage() == 2 ? std::size_t(buckets_.shard_elements()) : 0),
      sent_(settings.reduce_in_bf16 ? gradients_.size() : 0),
      partial_(std::max(all_plan_.tiles.size(), shard_plan_.tiles.size())),
      rank_sums_(kernels::rank_sums_size(modules()) * std::size_t(settings.sharding.ranks)),
      reduced_(std::size_t(buckets_.size())) {
    const SmallBatches small = settings.small_batches;
    require(stage() < 2 || small == SmallBatches::none || small == SmallBatches::micro_batches,
            "small batches for the noise scale", small == SmallBatches::ranks ? "ranks" : "first micro-batches",
            "micro-batches at stage 2, which never has a rank's sum");
    require(stage() == 2 || small != SmallBatches::micro_batches, "small batches for the noise scale", "micro-batches",
            "ranks or first micro-batches below stage 2, which has only their sums");
    gradients_.zero(context.stream);  // the gaps between tensors stay 0
    shards_.zero(context.stream);
    rank_sums_.zero(context.stream);
    context.stream.sync();  // before the plans on the host may go
}

GradientExchange::~GradientExchange() {
    try {
        context_.communicator->sync(last_);
    } catch (...) {  // whoever uses the communicator next is told
    }
}

std::span<double> GradientExchange::row() const {
    const std::size_t size = kernels::rank_sums_size(modules());
    return rank_sums_.span().subspan(std::size_t(settings_.sharding.rank) * size, size);
}

template <class T> std::span<T> GradientExchange::memory(std::span<T> all, int bucket) const {
    if (stage() < 2) return buckets_[bucket].in_flat(all);
    return all.subspan(buffer_of(bucket) * std::size_t(buckets_.largest_block()), std::size_t(buckets_[bucket].size));
}

std::span<float> GradientExchange::gradient(int tensor) const {
    const ParameterSpec& spec = table_.tensors()[std::size_t(tensor)];
    const int bucket = buckets_.of_tensor(tensor);
    return memory(gradients_.span(), bucket).subspan(std::size_t(spec.offset - buckets_[bucket].first),
                                                     std::size_t(spec.size()));
}

std::span<float> GradientExchange::shard(int bucket) const {
    return stage() < 2 ? buckets_[bucket].shard_in_flat(gradients_.span()) : buckets_[bucket].in_shards(shards_.span());
}

void GradientExchange::begin(const MicroStep& micro) {
    require(micro.valid_targets >= 0, "the valid targets of a micro-batch", micro.valid_targets, "at least 0");
    micro_ = micro;
    if (micro.index == 0) {
        counts_ = {};
        device::fill_zero(row().data(), row().size_bytes(), context_.stream);
    }
    counts_.valid_targets += micro.valid_targets;
}

void GradientExchange::open(int bucket) {
    if (stage() == 2) settle(pending_[buffer_of(bucket)]);
}

// Whether with this micro-batch the gradient of a small batch is complete.
bool GradientExchange::small_batch_ends() const {
    switch (settings_.small_batches) {
        case SmallBatches::none: return false;
        case SmallBatches::ranks: return micro_.index + 1 == micro_.count;
        case SmallBatches::first_micro_batches: return micro_.index == 0;
        case SmallBatches::micro_batches: break;
    }
    return true;
}

void GradientExchange::take_norms(const device::Array<kernels::NormTile>& tiles, const NormTiles& plan, int bucket,
                                  std::span<const float> values, std::span<bf16> rounded) {
    const std::size_t first = plan.bucket_start[std::size_t(bucket)],
                      count = plan.bucket_start[std::size_t(bucket) + 1] - first;
    kernels::squared_norms({.partial = partial_.span().subspan(first, count), .values = values,
                            .tiles = tiles.span().subspan(first, count), .rounded = rounded}, context_.stream);
}

void GradientExchange::complete(int bucket) {
    const bool reduces = stage() == 2 || micro_.index + 1 == micro_.count;
    const auto gradients = memory(gradients_.span(), bucket);
    const auto sent = reduces && settings_.reduce_in_bf16 ? memory(sent_.span(), bucket) : std::span<bf16>();
    if (small_batch_ends()) {
        // the tiles cover the bucket, gaps included: all of `sent` is written
        take_norms(all_tiles_, all_plan_, bucket, gradients, sent);
        const std::int64_t tokens = settings_.small_batches == SmallBatches::ranks ? counts_.valid_targets
                                                                                   : micro_.valid_targets;
        if (bucket == buckets_.embeddings() && tokens > 0) {
            kernels::module_sums({.sums = norms(1), .partial = partial_.span(), .module_start = all_modules_.span(),
                                 .factor = 1 / double(tokens), .accumulate = true},
                                context_.stream);
            counts_.small_tokens += tokens;
            counts_.small_batches += 1;
        }
    } else if (!sent.empty()) {
        kernels::gradient_copy<bf16, float>({.out = sent, .in = gradients}, context_.stream);
    }
    if (stage() == 2)
        pending_[buffer_of(bucket)] = {.bucket = bucket, .accumulate = micro_.index > 0, .reduced = reduce(bucket)};
    else if (reduces) reduced_[std::size_t(bucket)] = reduce(bucket);
}

CommEvent GradientExchange::reduce(int bucket) {
    return settings_.reduce_in_bf16 ? reduce(bucket, memory(sent_.span(), bucket))
                                    : reduce(bucket, memory(gradients_.span(), bucket));
}

template <class T> CommEvent GradientExchange::reduce(int bucket, std::span<T> whole) {
    const ShardRange shard = buckets_[bucket].shard;
    Communicator& communicator = *context_.communicator;
    communicator.group_begin(context_.stream);
    if (stage() == 0) communicator.all_reduce<T>(whole);
    else communicator.reduce_scatter<T>(whole.subspan(std::size_t(shard.first), std::size_t(shard.size)), whole);
    return last_ = communicator.group_end();
}

// From where the communicator left a bucket's sum to where the optimizer reads it.
void GradientExchange::receive(int bucket, bool accumulate) {
    const ShardRange shard = buckets_[bucket].shard;
    const auto part = [&]<class T>(std::span<T> all) {
        return memory(all, bucket).subspan(std::size_t(shard.first), std::size_t(shard.size));
    };
    const bool everything = stage() == 0;
    if (settings_.reduce_in_bf16)
        kernels::gradient_copy<float, bf16>(
            {.out = everything ? memory(gradients_.span(), bucket) : this->shard(bucket),
             .in = everything ? memory(sent_.span(), bucket) : part(sent_.span()),
             .accumulate = accumulate},
            context_.stream);
    else if (stage() == 2)
        kernels::gradient_copy<float, float>({.out = this->shard(bucket), .in = part(gradients_.span()),
                                              .accumulate = accumulate}, context_.stream);
}

void GradientExchange::settle(Pending& pending) {
    if (pending.bucket < 0) return;
    context_.communicator->wait(context_.stream, pending.reduced);
    receive(pending.bucket, pending.accumulate);
    pending.bucket = -1;
}

void GradientExchange::finish() {
    require(micro_.index + 1 == micro_.count, "the micro-batches of a step", micro_.index + 1,
            std::to_string(micro_.count));
    Communicator& communicator = *context_.communicator;
    for (int bucket = 0; bucket < buckets_.size(); ++bucket) {
        if (stage() == 2) {
            if (Pending& pending = pending_[buffer_of(bucket)]; pending.bucket == bucket) settle(pending);
        } else {
            communicator.wait(context_.stream, reduced_[std::size_t(bucket)]);
            receive(bucket, false);
        }
        take_norms(shard_tiles_, shard_plan_, bucket, shard(bucket));
    }
    kernels::module_sums({.sums = norms(0), .partial = partial_.span(),
                          .module_start = shard_modules_.span()}, context_.stream);
    kernels::put_counts(row(), counts_, context_.stream);
    communicator.group_begin(context_.stream);
    const auto bytes = [](std::span<double> values) { return std::span(reinterpret_cast<std::byte*>(values.data()),
                                                                       values.size_bytes()); };
    communicator.all_gather<std::byte>(bytes(rank_sums_.span()), bytes(row()));
    communicator.wait(context_.stream, last_ = communicator.group_end());
}

std::size_t gradient_bytes(const ParameterTable& table, const GradientExchange::Settings& settings) {
    const std::size_t each = sizeof(float) + (settings.reduce_in_bf16 ? sizeof(bf16) : 0);
    if (settings.sharding.stage < 2) return std::size_t(table.elements()) * each;
    const GradientBuckets buckets(table, settings.sharding);
    return std::size_t(written_elements(buckets, 2)) * each + std::size_t(buckets.shard_elements()) * sizeof(float);
}

}  // namespace llmc
