// onebit_mean.cpp - divides the array into buckets, makes masks, and pipelines the exchange of messages
#include "llmc/model/onebit_mean.h"

#include <algorithm>
#include <numeric>

#include "kernels/base/error.h"
#include "kernels/device/range.h"
#include "llmc/model/activations.h"
#include "llmc/model/context.h"
#include "llmc/model/gradient_exchange.h"

namespace llmc {
namespace {

using kernels::OnebitGroup, kernels::OnebitLayout, kernels::OnebitPlan, kernels::OnebitTile;

constexpr std::int64_t kMaxBucketElements = std::int64_t(1) << 23;  // per bucket: 32 MiB of gradients
constexpr std::int64_t kBlockElements = 4096;                  // elements per scale with OnebitScale::block

std::span<std::byte> bytes_of_words(std::span<std::uint32_t> words) {
    return {reinterpret_cast<std::byte*>(words.data()), words.size_bytes()};
}

// The bits of a flat mask for one bucket, with zeros for its padding.
std::vector<std::uint32_t> mask_of(const ElementRange& flat, std::int64_t padded,
                                   std::span<const std::uint32_t> active) {
    std::vector<std::uint32_t> words(std::size_t(padded / 32));
    std::ranges::copy(active.subspan(std::size_t(flat.first / 32), std::size_t(flat.size / 32)), words.begin());
    return words;
}

OnebitPlan plan_of(const OnebitLayout& layout, std::span<const std::int64_t> ends, OnebitScale scale,
                   std::span<const std::uint32_t> mask) {
    if (scale == OnebitScale::tensor) return kernels::onebit_plan(layout, ends, mask);
    return kernels::onebit_plan(layout, scale == OnebitScale::block ? kBlockElements : 0, mask);
}

}  // namespace

// The buckets of a segment have the same padded size and message size, so that their replies are equal shards.
std::vector<OnebitMean::Bucket> OnebitMean::divide(const ParameterTable& table, int workers, int local_ranks,
                                                   const OnebitMeanSettings& settings, const Sharding& of) {
    require(settings.bits != 1 || settings.errors, "error feedback with 1 bit per element", "disabled", "enabled");
    require(settings.error_decay >= 0 && settings.error_decay <= 1, "the decay of errors", settings.error_decay,
            "from 0 to 1");
    require(settings.bits == 1 || local_ranks == 1, "the ranks of a node with 4 bits per element", local_ranks, "1");
    const OnebitScale scale = settings.scale;
    const GradientBuckets owners(table, of);
    std::vector<OwnedShard> shards;
    if (of.ranks > 1) shards = owners.owned();
    else
        for (const GradientBucket& bucket : owners.all()) shards.push_back({.flat = bucket.flat, .owned = bucket.flat});
    std::vector<Bucket> buckets;
    const auto add = [&](std::int64_t first, std::int64_t size, std::int64_t owned) {
        const OnebitLayout longest = kernels::onebit_layout(shard_of(size, local_ranks - 1, local_ranks).size, workers,
                                                            128, settings.bits);
        int scales = 1;
        for (int local_rank = 0; local_rank < local_ranks; ++local_rank) {
            const ElementRange shard = shard_of(size, local_rank, local_ranks);
            Bucket bucket{.flat = {.first = first + shard.first, .size = shard.size},
                          .owned = {.first = owned + shard.first, .size = shard.size},
                          .segment = {.first = first, .size = size}, .layout = longest};
            bucket.layout.size = shard.size;
            if (scale == OnebitScale::tensor) {
                for (const ParameterSpec& spec : table.tensors())
                    if (const std::int64_t end = spec.offset - bucket.flat.first; end > 0 && end < shard.size)
                        bucket.ends.push_back(end);
                bucket.ends.push_back(std::max<std::int64_t>(shard.size, 32));  // an empty shard has a group of padding
            }
            scales = std::max(scales, plan_of(bucket.layout, bucket.ends, scale, {}).layout.scales);
            buckets.push_back(std::move(bucket));
        }
        for (Bucket& bucket : std::span(buckets).last(std::size_t(local_ranks))) bucket.layout.scales = scales;
    };
    for (const OwnedShard& shard : shards) {
        const std::int64_t parts = ceil_div(shard.flat.size, kMaxBucketElements);
        const std::int64_t unit = of.ranks == 1 ? kTensorMultiple : kShardMultiple, units = shard.flat.size / unit;
        for (std::int64_t part = 0; part < parts; ++part) {
            const std::int64_t first = units * part / parts, end = units * (part + 1) / parts;
            add(shard.flat.first + first * unit, (end - first) * unit, shard.owned.first + first * unit);
        }
    }
    return buckets;
}

// Assigns the buckets' memory, first the worker errors; with a null base it only counts the bytes.
std::size_t OnebitMean::lay_out(std::vector<Bucket>& buckets, int local_rank, int local_ranks, bool errors,
                                std::byte* base) {
    Arena arena(base);
    const auto step = std::size_t(local_ranks);
    for (std::size_t i = std::size_t(local_rank); errors && i < buckets.size(); i += step)
        buckets[i].error = arena.take<float>(std::size_t(buckets[i].layout.padded()));
    for (std::size_t first = 0; first < buckets.size(); first += step) {
        Bucket& own = buckets[first + std::size_t(local_rank)];
        const OnebitLayout& layout = own.layout;
        const auto words = std::size_t(layout.message_words()), messages = words * std::size_t(layout.ranks);
        if (errors) own.server_error = arena.take<float>(std::size_t(layout.chunk));
        own.sums = arena.take<float>(std::size_t(layout.chunk));
        if (local_ranks > 1) own.node_sum = arena.take<float>(std::size_t(own.flat.size));
        for (auto* const of_ranks : {&own.messages, &own.received}) *of_ranks = arena.take<std::uint32_t>(messages);
        own.reply = arena.take<std::uint32_t>(words);
        own.replies_of_segment = arena.take<std::uint32_t>(step * messages);
        for (std::size_t i = 0; i < step; ++i) {
            buckets[first + i].active = arena.take<std::uint32_t>(std::size_t(layout.padded() / 32));
            if (base) buckets[first + i].replies = own.replies_of_segment.subspan(i * messages, messages);
        }
    }
    return arena.bytes();
}

OnebitMean::Bytes OnebitMean::bytes(const ParameterTable& table, int workers, int local_ranks,
                                    const OnebitMeanSettings& settings, const Sharding& of) {
    std::vector<Bucket> buckets = divide(table, workers, local_ranks, settings, of);
    Bytes bytes{.device = device::allocation_size(lay_out(buckets, 0, local_ranks, settings.errors, nullptr)),
                .lists = 0, .errors = 0, .messages = 0};
    for (std::size_t i = 0; i < buckets.size(); i += std::size_t(local_ranks))
        bytes.messages += std::size_t(buckets[i].layout.ranks * buckets[i].layout.message_words()) * 4;
    const auto lists = [](const OnebitPlan& plan) {
        return device::allocation_size(plan.tiles.size() * sizeof(OnebitTile)) +
               device::allocation_size(plan.groups.size() * sizeof(OnebitGroup));
    };
    for (const Bucket& bucket : buckets) {
        const OnebitPlan plan = plan_of(bucket.layout, bucket.ends, settings.scale, {});
        bytes.lists += lists(plan) + lists(kernels::onebit_plan_of_chunk(plan, 0));
    }
    for (std::size_t i = 0; settings.errors && i < buckets.size(); i += std::size_t(local_ranks))
        bytes.errors += std::size_t(buckets[i].layout.padded() + buckets[i].layout.chunk) * sizeof(float);
    return bytes;
}

OnebitMean::OnebitMean(const ParameterTable& table, const OnebitRanks& ranks, const OnebitMeanSettings& settings,
                       Context& context, const Sharding& of)
    : context_(context),
      ranks_(ranks),
      rank_(ranks.across->rank()),
      local_rank_(ranks.within ? ranks.within->rank() : 0),
      local_ranks_(ranks.within ? ranks.within->size() : 1),
      settings_(settings),
      owned_values_(of.shards_gradients()),
      elements_(table.elements()),
      buckets_(divide(table, ranks.across->size(), local_ranks_, settings, of)),
      memory_(lay_out(buckets_, local_rank_, local_ranks_, settings.errors, nullptr)),
      finite_(1),
      yes_(1),
      summed_(segments()),
      sent_(segments()),
      answered_(segments()),
      shared_(segments()) {
    require(settings.bits == 1 || !ranks.within, "the mean over nodes with 4 bits per element", "set", "ranks only");
    lay_out(buckets_, local_rank_, local_ranks_, settings.errors, memory_.data());
    const device::SyncIfThrown guard(context.stream);
    const std::int32_t yes = 1;
    yes_.upload({&yes, 1}, context.stream);
    device::fill_zero(memory_.data(), memory_.bytes(), context.stream);
    set_active(std::vector<std::uint32_t>(std::size_t(ceil_div(elements_, 32))));
}

OnebitMean::~OnebitMean() {
    try {
        ranks_.across->sync(last_across_);
        if (ranks_.within) ranks_.within->sync(last_within_);
    } catch (...) {  // the next use of the communicator throws it again
    }
}

void OnebitMean::set_active(std::span<const std::uint32_t> active) {
    require(std::int64_t(active.size()) * 32 >= elements_, "the bits of active elements", active.size() * 32,
            "one for each of " + std::to_string(elements_));
    std::size_t largest = 0;
    const device::StreamRef stream = context_.stream;
    for (Bucket& bucket : buckets_) {
        const std::vector<std::uint32_t> mask = mask_of(bucket.flat, bucket.layout.padded(), active);
        const OnebitPlan plan = plan_of(bucket.layout, bucket.ends, settings_.scale, mask),
                         served = kernels::onebit_plan_of_chunk(plan, rank_);
        const device::SyncIfThrown guard(stream);
        bucket.tiles = {plan.tiles, stream};
        bucket.groups = {plan.groups, stream};
        bucket.served_tiles = {served.tiles, stream};
        bucket.served_groups = {served.groups, stream};
        device::copy_to_device(bucket.active.data(), mask.data(), bucket.active.size_bytes(), stream);
        device::sync(stream);  // before the host copies are freed
        largest = std::max(largest, plan.tiles.size());
    }
    partial_ = device::Array<double>(largest);
}

void OnebitMean::zero_errors() {
    if (!settings_.errors) return;
    for (std::size_t i = 0; i < segments(); ++i)
        for (const std::span<float> error : {own(i).error, own(i).server_error})
            device::fill_zero(error.data(), error.size_bytes(), context_.stream);
}

void OnebitMean::admit() {
    device::copy_on_device(finite_.span().data(), yes_.span().data(), sizeof(std::int32_t), context_.stream);
}

std::size_t OnebitMean::tiles() const {
    std::size_t sum = 0;
    for (const Bucket& bucket : buckets_) sum += bucket.tiles.size();
    return sum;
}

void OnebitMean::compress(const Bucket& bucket, const Input& input) {
    const auto flat = [&](std::span<const float> all) { return all.empty() ? all : bucket.flat.of(all); };
    const std::span<double> partial = partial_.span().first(bucket.tiles.size());
    const std::span<float> values = values_of(bucket, input.values);
    kernels::onebit_compress({.layout = bucket.layout, .tiles = bucket.tiles.span(),
                              .values = values, .error = bucket.error, .messages = bucket.messages,
                              .partial = partial, .active = bucket.active, .momentum = flat(input.momentum),
                              .second_moment = flat(input.second_moment), .gradient_scale = input.gradient_scale,
                              .momentum_weight = input.momentum_weight, .gradient_weight = input.gradient_weight,
                              .eps = input.eps, .error_weight = settings_.error_decay}, context_.stream);
    kernels::onebit_scales({.layout = bucket.layout, .groups = bucket.groups.span(), .partial = partial,
                            .messages = bucket.messages, .one = one_scale(), .factor = scale_factor()},
                           context_.stream);
    if (settings_.bits == 4)
        kernels::onebit_quantize({.layout = bucket.layout, .tiles = bucket.tiles.span(), .values = values,
                                  .messages = bucket.messages, .active = bucket.active, .one = one_scale()},
                                 context_.stream);
}

void OnebitMean::serve(const Bucket& bucket) {
    const std::span<double> partial = partial_.span().first(bucket.served_tiles.size());
    kernels::onebit_serve({.layout = bucket.layout, .tiles = bucket.served_tiles.span(), .sums = bucket.sums,
                           .error = bucket.server_error, .received = bucket.received, .reply = bucket.reply,
                           .partial = partial, .active = bucket.active, .chunk = rank_, .one = one_scale(),
                           .error_weight = settings_.error_decay}, context_.stream);
    kernels::onebit_scales({.layout = bucket.layout, .groups = bucket.served_groups.span(), .partial = partial,
                            .messages = bucket.reply, .factor = scale_factor()}, context_.stream);
    if (settings_.bits == 4)
        kernels::onebit_quantize({.layout = bucket.layout.of_chunk(), .tiles = bucket.served_tiles.span(),
                                  .values = bucket.sums, .messages = bucket.reply}, context_.stream);
}

void OnebitMean::exchange(const Input& input) {
    const device::Range range(settings_.bits == 4 ? "4-bit exchange" : "1-bit exchange");
    const device::StreamRef stream = context_.stream;
    Communicator &across = *ranks_.across, *const within = ranks_.within;
    const std::size_t count = segments();
    const auto sum = [&](std::size_t i) {
        if (within && i < count)
            last_within_ = summed_[i] = input.gradients->begin_sum(*within, own(i).segment, own(i).node_sum);
    };
    const auto answer = [&](std::size_t i) {
        const Bucket& bucket = own(i);
        across.wait(stream, sent_[i]);
        serve(bucket);
        across.group_begin(stream);
        across.all_gather<std::byte>(bytes_of_words(bucket.replies), bytes_of_words(bucket.reply));
        last_across_ = answered_[i] = across.group_end();
    };
    const auto share = [&](std::size_t i) {
        across.wait(stream, answered_[i]);
        if (!within) return;
        within->group_begin(stream);
        within->all_gather<std::byte>(bytes_of_words(own(i).replies_of_segment), bytes_of_words(own(i).replies));
        last_within_ = shared_[i] = within->group_end();
    };
    sum(0);
    for (std::size_t i = 0; i < count; ++i) {
        const Bucket& bucket = own(i);
        sum(i + 1);
        if (within) input.gradients->end_sum(*within, summed_[i], bucket.segment, bucket.node_sum);
        compress(bucket, input);
        across.group_begin(stream);
        across.all_to_all<std::byte>(bytes_of_words(bucket.received), bytes_of_words(bucket.messages));
        last_across_ = sent_[i] = across.group_end();
        if (i > 0) answer(i - 1);
    }
    if (count > 0) answer(count - 1);
    for (std::size_t i = 0; i < count; ++i) share(i);
    for (std::size_t i = 0; i < buckets_.size(); ++i) {
        const Bucket& bucket = buckets_[i];
        if (within) within->wait(stream, shared_[i / std::size_t(local_ranks_)]);
        kernels::onebit_check_scales({.layout = bucket.layout, .groups = bucket.groups.span(),
                                      .replies = bucket.replies, .finite = finite_.span()}, stream);
    }
}

void OnebitMean::commit() {
    if (!settings_.errors) return;
    for (std::size_t i = 0; i < segments(); ++i) {
        const Bucket& bucket = own(i);
        kernels::onebit_commit({.layout = bucket.layout, .tiles = bucket.served_tiles.span(), .sums = bucket.sums,
                                .error = bucket.server_error, .reply = bucket.reply, .finite = finite_.span(),
                                .active = bucket.active, .chunk = rank_}, context_.stream);
    }
}

std::vector<std::size_t> OnebitMean::ascending() const {
    std::vector<std::size_t> order(segments());
    std::iota(order.begin(), order.end(), std::size_t(0));
    std::ranges::sort(order, {}, [&](std::size_t i) { return own(i).segment.first; });
    return order;
}

std::vector<StateShard> OnebitMean::worker_errors() const {
    std::vector<StateShard> all;
    if (!settings_.errors) return all;
    for (const std::size_t i : ascending())
        all.push_back({own(i).flat.first, own(i).error.first(std::size_t(own(i).flat.size))});
    return all;
}

std::vector<StateShard> OnebitMean::server_errors() const {
    std::vector<StateShard> all;
    for (std::size_t i = 0; settings_.errors && i < segments(); ++i) {
        const Bucket& bucket = own(i);
        const std::int64_t first = std::min(bucket.flat.size, rank_ * bucket.layout.chunk),
                           size = std::min(bucket.flat.size - first, bucket.layout.chunk);
        all.push_back({bucket.flat.first + first, bucket.server_error.first(std::size_t(size))});
    }
    return all;
}

std::span<float> OnebitMean::error_memory() const {
    return {own(0).error.data(), settings_.errors ? std::size_t(elements_) : 0};
}

}  // namespace llmc
