// onebit_mean.cpp - divides the array into buckets, makes masks, and pipelines the exchange of messages
#include "llmc/model/onebit_mean.h"

#include <algorithm>
#include <numeric>

#include "kernels/base/error.h"
#include "kernels/device/range.h"
#include "llmc/model/context.h"

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
                                                   OnebitScale scale, Sizes& sizes) {
    const GradientBuckets whole(table, {});
    std::vector<Bucket> buckets;
    const auto add = [&](std::int64_t first, std::int64_t size) {
        const OnebitLayout longest = kernels::onebit_layout(shard_of(size, 0, local_ranks).size, workers);
        int scales = 1;
        for (int local_rank = 0; local_rank < local_ranks; ++local_rank) {
            const ElementRange shard = shard_of(size, local_rank, local_ranks);
            Bucket bucket{.flat = {.first = first + shard.first, .size = shard.size},
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
        for (Bucket& bucket : std::span(buckets).last(std::size_t(local_ranks))) {
            bucket.layout.scales = scales;
            bucket.error = sizes.error;
            bucket.served = sizes.served;
            bucket.message = sizes.message;
            bucket.reply = sizes.reply;
            bucket.replies = sizes.replies;
            bucket.active = sizes.active;
            sizes.replies += std::size_t(bucket.layout.message_words() * workers);
            sizes.active += std::size_t(bucket.layout.padded() / 32);
        }
        const OnebitLayout& layout = buckets.back().layout;
        sizes.error += std::size_t(layout.padded());
        sizes.served += std::size_t(layout.chunk);
        sizes.message += std::size_t(layout.message_words() * workers);
        sizes.reply += std::size_t(layout.message_words());
    };
    for (const GradientBucket& bucket : whole.all()) {
        const std::int64_t parts = ceil_div(bucket.flat.size, kMaxBucketElements);
        const std::int64_t units = bucket.flat.size / kTensorMultiple;
        for (std::int64_t part = 0; part < parts; ++part) {
            const std::int64_t first = units * part / parts, end = units * (part + 1) / parts;
            add(bucket.flat.first + first * kTensorMultiple, (end - first) * kTensorMultiple);
        }
    }
    return buckets;
}

OnebitMean::Bytes OnebitMean::bytes(const ParameterTable& table, int workers, int local_ranks, OnebitScale scale) {
    Sizes sizes;
    divide(table, workers, local_ranks, scale, sizes);
    Bytes bytes{.device = 0, .errors = (sizes.error + sizes.served) * sizeof(float)};
    const auto add = [&](std::size_t arrays, std::size_t elements) {
        bytes.device += arrays * device::allocation_size(elements * sizeof(float));
    };
    add(local_ranks > 1 ? 2 : 1, sizes.error);
    add(2, sizes.served);
    add(2, sizes.message);
    for (const std::size_t words : {sizes.replies, sizes.reply, sizes.active}) add(1, words);
    return bytes;
}

OnebitMean::OnebitMean(const ParameterTable& table, const OnebitRanks& ranks, OnebitScale scale, Context& context)
    : context_(context),
      ranks_(ranks),
      rank_(ranks.across->rank()),
      local_rank_(ranks.within ? ranks.within->rank() : 0),
      local_ranks_(ranks.within ? ranks.within->size() : 1),
      scale_(scale),
      elements_(table.elements()),
      buckets_(divide(table, ranks.across->size(), local_ranks_, scale, sizes_)),
      errors_(sizes_.error),
      server_errors_(sizes_.served),
      sums_(sizes_.served),
      node_sums_(ranks.within ? sizes_.error : 0),
      messages_(sizes_.message),
      received_(sizes_.message),
      replies_(sizes_.replies),
      reply_(sizes_.reply),
      active_(sizes_.active),
      finite_(1),
      summed_(segments()),
      sent_(segments()),
      answered_(segments()),
      shared_(segments()) {
    for (auto* const words : {&messages_, &received_, &replies_, &reply_}) words->zero(context.stream);
    const std::vector<std::uint32_t> none(std::size_t(ceil_div(elements_, 32)));
    zero_errors();
    set_active(none);
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
    make_plans(active);
}

void OnebitMean::zero_errors() {
    errors_.zero(context_.stream);
    server_errors_.zero(context_.stream);
}

void OnebitMean::make_plans(std::span<const std::uint32_t> active) {
    std::vector<OnebitTile> tiles, served_tiles;
    std::vector<OnebitGroup> groups, served_groups;
    std::size_t largest = 0;
    const device::SyncIfThrown guard(context_.stream);
    const auto append = [](auto& all, const auto& some, std::size_t& first, std::size_t& count) {
        first = all.size();
        count = some.size();
        all.insert(all.end(), some.begin(), some.end());
    };
    for (Bucket& bucket : buckets_) {
        const std::vector<std::uint32_t> mask = mask_of(bucket.flat, bucket.layout.padded(), active);
        const OnebitPlan plan = plan_of(bucket.layout, bucket.ends, scale_, mask);
        const OnebitPlan served = kernels::onebit_plan_of_chunk(plan, rank_);
        append(tiles, plan.tiles, bucket.tile, bucket.tiles);
        append(groups, plan.groups, bucket.group, bucket.groups);
        append(served_tiles, served.tiles, bucket.served_tile, bucket.served_tiles);
        append(served_groups, served.groups, bucket.served_group, bucket.served_groups);
        device::copy_to_device(active_.span().data() + bucket.active, mask.data(), mask.size() * sizeof mask[0],
                               context_.stream);
        context_.stream.sync();  // before the mask is freed
        largest = std::max(largest, plan.tiles.size());
    }
    tiles_ = {std::span<const OnebitTile>(tiles), context_.stream};
    groups_ = {std::span<const OnebitGroup>(groups), context_.stream};
    served_tiles_ = {std::span<const OnebitTile>(served_tiles), context_.stream};
    served_groups_ = {std::span<const OnebitGroup>(served_groups), context_.stream};
    partial_ = device::Array<double>(largest);
    context_.stream.sync();
}

void OnebitMean::compress(const Bucket& bucket, const Input& input) {
    const device::StreamRef stream = context_.stream;
    const auto flat = [&](std::span<const float> all) { return all.empty() ? all : bucket.flat.of(all); };
    const std::span<double> partial = partial_.span().first(bucket.tiles);
    kernels::onebit_compress(
        {.layout = bucket.layout, .tiles = tiles_.span().subspan(bucket.tile, bucket.tiles),
         .values = ranks_.within ? node_sum(bucket) : bucket.flat.of(input.values),
         .error = errors_.span().subspan(bucket.error, std::size_t(bucket.layout.padded())),
         .messages = messages_in(messages_.span(), bucket), .partial = partial, .active = active_in(bucket),
         .momentum = flat(input.momentum), .second_moment = flat(input.second_moment),
         .gradient_scale = input.gradient_scale, .momentum_weight = input.momentum_weight,
         .gradient_weight = input.gradient_weight, .eps = input.eps}, stream);
    kernels::onebit_scales({.layout = bucket.layout, .groups = groups_.span().subspan(bucket.group, bucket.groups),
                            .partial = partial, .messages = messages_in(messages_.span(), bucket),
                            .one = scale_ == OnebitScale::bucket}, stream);
}

void OnebitMean::serve(const Bucket& bucket) {
    const device::StreamRef stream = context_.stream;
    const auto served = [&](auto all) { return all.subspan(bucket.served, std::size_t(bucket.layout.chunk)); };
    const std::span<std::uint32_t> reply = reply_.span().subspan(bucket.reply, words(bucket));
    const std::span<double> partial = partial_.span().first(bucket.served_tiles);
    kernels::onebit_serve({.layout = bucket.layout,
                           .tiles = served_tiles_.span().subspan(bucket.served_tile, bucket.served_tiles),
                           .sums = served(sums_.span()), .error = served(server_errors_.span()),
                           .received = messages_in(received_.span(), bucket), .reply = reply, .partial = partial,
                           .active = active_in(bucket), .chunk = rank_, .one = scale_ == OnebitScale::bucket}, stream);
    kernels::onebit_scales({.layout = bucket.layout,
                            .groups = served_groups_.span().subspan(bucket.served_group, bucket.served_groups),
                            .partial = partial, .messages = reply}, stream);
}

void OnebitMean::exchange(const Input& input) {
    const device::Range range("1-bit exchange");
    const device::StreamRef stream = context_.stream;
    Communicator &across = *ranks_.across, *const within = ranks_.within;
    const std::size_t count = segments();
    const auto sum = [&](std::size_t i) {
        if (within && i < count) last_within_ = summed_[i] = input.begin_sum(own(i).segment, node_sum(own(i)));
    };
    const auto answer = [&](std::size_t i) {
        const Bucket& bucket = own(i);
        across.wait(stream, sent_[i]);
        serve(bucket);
        across.group_begin(stream);
        across.all_gather<std::byte>(bytes_of_words(replies_in(bucket)),
                                     bytes_of_words(reply_.span().subspan(bucket.reply, words(bucket))));
        last_across_ = answered_[i] = across.group_end();
    };
    const auto share = [&](std::size_t i) {
        across.wait(stream, answered_[i]);
        if (!within) return;
        within->group_begin(stream);
        within->all_gather<std::byte>(bytes_of_words(replies_in(buckets_[i * std::size_t(local_ranks_)], local_ranks_)),
                                      bytes_of_words(replies_in(own(i))));
        last_within_ = shared_[i] = within->group_end();
    };
    sum(0);
    for (std::size_t i = 0; i < count; ++i) {
        const Bucket& bucket = own(i);
        sum(i + 1);
        if (within) input.end_sum(summed_[i], bucket.segment, node_sum(bucket));
        compress(bucket, input);
        across.group_begin(stream);
        across.all_to_all<std::byte>(bytes_of_words(messages_in(received_.span(), bucket)),
                                     bytes_of_words(messages_in(messages_.span(), bucket)));
        last_across_ = sent_[i] = across.group_end();
        if (i > 0) answer(i - 1);
    }
    if (count > 0) answer(count - 1);
    for (std::size_t i = 0; i < count; ++i) share(i);
    for (std::size_t i = 0; i < buckets_.size(); ++i) {
        const Bucket& bucket = buckets_[i];
        if (within) within->wait(stream, shared_[i / std::size_t(local_ranks_)]);
        kernels::onebit_check_scales({.layout = bucket.layout,
                                      .groups = groups_.span().subspan(bucket.group, bucket.groups),
                                      .replies = replies_in(bucket), .finite = finite_.span()}, stream);
    }
}

OnebitMean::Exchanged OnebitMean::exchanged(std::size_t i, std::span<const float> values) const {
    const Bucket& bucket = buckets_[i];
    Exchanged exchanged{.layout = bucket.layout, .tiles = tiles_.span().subspan(bucket.tile, bucket.tiles),
                        .flat = bucket.flat, .compensated = {}, .error = {}, .messages = {},
                        .replies = replies_in(bucket), .active = active_in(bucket),
                        .one = scale_ == OnebitScale::bucket};
    if (&bucket != &own(i / std::size_t(local_ranks_))) return exchanged;
    exchanged.compensated = ranks_.within ? node_sum(bucket) : bucket.flat.of(values);
    exchanged.error = errors_.span().subspan(bucket.error, std::size_t(bucket.layout.padded()));
    exchanged.messages = messages_in(messages_.span(), bucket);
    return exchanged;
}

void OnebitMean::commit() {
    for (std::size_t i = 0; i < segments(); ++i) {
        const Bucket& bucket = own(i);
        const auto served = [&](auto all) { return all.subspan(bucket.served, std::size_t(bucket.layout.chunk)); };
        kernels::onebit_commit({.layout = bucket.layout,
                                .tiles = served_tiles_.span().subspan(bucket.served_tile, bucket.served_tiles),
                                .sums = served(sums_.span()), .error = served(server_errors_.span()),
                                .reply = reply_.span().subspan(bucket.reply, words(bucket)), .finite = finite_.span(),
                                .active = active_in(bucket), .chunk = rank_}, context_.stream);
    }
}

std::vector<std::size_t> OnebitMean::ascending() const {
    std::vector<std::size_t> order(segments());
    std::iota(order.begin(), order.end(), std::size_t(0));
    std::ranges::sort(order, {}, [&](std::size_t i) { return own(i).segment.first; });
    return order;
}

std::vector<StateTensor::Shard> OnebitMean::worker_errors() const {
    std::vector<StateTensor::Shard> all;
    for (const std::size_t i : ascending())
        all.push_back({own(i).flat.first, errors_.span().subspan(own(i).error, std::size_t(own(i).flat.size))});
    return all;
}

std::vector<StateTensor::Shard> OnebitMean::server_errors() const {
    std::vector<StateTensor::Shard> all;
    for (std::size_t i = 0; i < segments(); ++i) {
        const Bucket& bucket = own(i);
        const std::int64_t first = std::min(bucket.flat.size, rank_ * bucket.layout.chunk),
                           size = std::min(bucket.flat.size - first, bucket.layout.chunk);
        all.push_back({bucket.flat.first + first, server_errors_.span().subspan(bucket.served, std::size_t(size))});
    }
    return all;
}

std::span<float> OnebitMean::error_memory() const { return errors_.span().first(std::size_t(elements_)); }

}  // namespace llmc
