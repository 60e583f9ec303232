// onebit_mean.cpp - buckets cut and masked on the host; their messages on the way while the next ones are made
#include "llmc/model/onebit_mean.h"

#include <algorithm>

#include "kernels/device/error.h"
#include "kernels/device/range.h"
#include "llmc/model/context.h"

namespace llmc {
namespace {

using kernels::OnebitGroup, kernels::OnebitPlan, kernels::OnebitTile;

constexpr std::int64_t kMostElements = std::int64_t(1) << 23;  // of a bucket: 32 MiB of gradients, as one travels
constexpr std::int64_t kBlockElements = 4096;                  // that share a scale with OnebitScale::block

template <class T> std::span<const T> in_range(std::span<const T> flat, const ShardRange& range) {
    return flat.empty() ? flat : flat.subspan(std::size_t(range.first), std::size_t(range.size));
}
std::span<std::byte> bytes_of_words(std::span<std::uint32_t> words) {
    return {reinterpret_cast<std::byte*>(words.data()), words.size_bytes()};
}

// The bucket's bits of a flat mask, with zeros for its padding.
std::vector<std::uint32_t> mask_of(const ShardRange& flat, std::int64_t padded, std::span<const std::uint32_t> active) {
    std::vector<std::uint32_t> words(std::size_t(padded / 32));
    std::ranges::copy(active.subspan(std::size_t(flat.first / 32), std::size_t(flat.size / 32)), words.begin());
    return words;
}

}  // namespace

std::vector<OnebitMean::Bucket> OnebitMean::cut(const ParameterTable& table, const Sharding& sharding,
                                                OnebitScale scale, Sizes& sizes) {
    const GradientBuckets whole(table, sharding);
    std::vector<Bucket> buckets;
    const auto add = [&](std::int64_t first, std::int64_t size) {
        Bucket bucket{.flat = {.first = first, .size = size}, .layout = kernels::onebit_layout(size, sharding.ranks)};
        if (scale == OnebitScale::tensor)
            for (const ParameterSpec& spec : table.tensors())
                if (spec.offset > first && spec.offset < first + size) bucket.ends.push_back(spec.offset - first);
        if (scale == OnebitScale::tensor) bucket.ends.push_back(size);
        const OnebitPlan plan =
            scale == OnebitScale::tensor
                ? kernels::onebit_plan(bucket.layout, bucket.ends, {})
                : kernels::onebit_plan(bucket.layout, scale == OnebitScale::block ? kBlockElements : 0, {});
        bucket.layout = plan.layout;
        bucket.error = sizes.error;
        bucket.served = sizes.served;
        bucket.message = sizes.message;
        bucket.reply = sizes.reply;
        bucket.active = sizes.active;
        const auto message = std::size_t(bucket.layout.message_words());
        sizes.error += std::size_t(bucket.layout.padded());
        sizes.served += std::size_t(bucket.layout.chunk);
        sizes.message += message * std::size_t(sharding.ranks);
        sizes.reply += message;
        sizes.active += std::size_t(bucket.layout.padded() / 32);
        buckets.push_back(std::move(bucket));
    };
    for (const GradientBucket& bucket : whole.all()) {
        const std::int64_t parts = (bucket.size + kMostElements - 1) / kMostElements;
        const std::int64_t units = bucket.size / std::int64_t(kernels::kTensorAlignment);
        for (std::int64_t part = 0; part < parts; ++part) {
            const std::int64_t first = units * part / parts, end = units * (part + 1) / parts;
            add(bucket.first + first * std::int64_t(kernels::kTensorAlignment),
                (end - first) * std::int64_t(kernels::kTensorAlignment));
        }
    }
    return buckets;
}

std::size_t OnebitMean::bytes(const ParameterTable& table, const Sharding& sharding, OnebitScale scale) {
    Sizes sizes;
    cut(table, sharding, scale, sizes);
    return (sizes.error + 2 * sizes.served) * sizeof(float) +
           (3 * sizes.message + sizes.reply + sizes.active) * sizeof(std::uint32_t);
}

OnebitMean::OnebitMean(const ParameterTable& table, const Sharding& sharding, OnebitScale scale, Context& context)
    : context_(context),
      rank_(sharding.rank),
      scale_(scale),
      elements_(table.elements()),
      buckets_(cut(table, sharding, scale, sizes_)),
      errors_(sizes_.error),
      server_errors_(sizes_.served),
      sums_(sizes_.served),
      messages_(sizes_.message),
      received_(sizes_.message),
      replies_(sizes_.message),
      reply_(sizes_.reply),
      active_(sizes_.active),
      finite_(1),
      sent_(buckets_.size()),
      answered_(buckets_.size()) {
    for (auto* const words : {&messages_, &received_, &replies_, &reply_}) words->zero(context.stream);
    const std::vector<std::uint32_t> none(std::size_t(elements_ + 31) / 32);
    set_active(none);
}

OnebitMean::~OnebitMean() {
    try {
        context_.communicator->sync(last_);
    } catch (...) {  // whoever uses the communicator next is told
    }
}

void OnebitMean::set_active(std::span<const std::uint32_t> active) {
    require(std::int64_t(active.size()) * 32 >= elements_, "the bits of active elements", active.size() * 32,
            "one for each of " + std::to_string(elements_));
    errors_.zero(context_.stream);
    server_errors_.zero(context_.stream);
    make_plans(active);
}

void OnebitMean::make_plans(std::span<const std::uint32_t> active) {
    std::vector<OnebitTile> tiles, served_tiles;
    std::vector<OnebitGroup> groups, served_groups;
    std::vector<std::uint32_t> masks;
    std::size_t largest = 0;
    const auto append = [](auto& all, const auto& some, std::size_t& first, std::size_t& count) {
        first = all.size();
        count = some.size();
        all.insert(all.end(), some.begin(), some.end());
    };
    for (Bucket& bucket : buckets_) {
        const std::vector<std::uint32_t> mask = mask_of(bucket.flat, bucket.layout.padded(), active);
        const OnebitPlan plan =
            scale_ == OnebitScale::tensor
                ? kernels::onebit_plan(bucket.layout, bucket.ends, mask)
                : kernels::onebit_plan(bucket.layout, scale_ == OnebitScale::block ? kBlockElements : 0, mask);
        const OnebitPlan served = kernels::onebit_plan_of_chunk(plan, rank_);
        append(tiles, plan.tiles, bucket.tile, bucket.tiles);
        append(groups, plan.groups, bucket.group, bucket.groups);
        append(served_tiles, served.tiles, bucket.served_tile, bucket.served_tiles);
        append(served_groups, served.groups, bucket.served_group, bucket.served_groups);
        masks.insert(masks.end(), mask.begin(), mask.end());
        largest = std::max(largest, plan.tiles.size());
    }
    const device::SyncIfThrown guard(context_.stream);
    tiles_ = {std::span<const OnebitTile>(tiles), context_.stream};
    groups_ = {std::span<const OnebitGroup>(groups), context_.stream};
    served_tiles_ = {std::span<const OnebitTile>(served_tiles), context_.stream};
    served_groups_ = {std::span<const OnebitGroup>(served_groups), context_.stream};
    active_.upload(masks, context_.stream);
    partial_ = device::Array<double>(largest);
    context_.stream.sync();
}

void OnebitMean::compress(const Bucket& bucket, const Input& input) {
    const device::StreamRef stream = context_.stream;
    const auto flat = [&](std::span<const float> all) { return in_range(all, bucket.flat); };
    const std::span<double> partial = partial_.span().first(bucket.tiles);
    kernels::onebit_compress(
        {.layout = bucket.layout, .tiles = tiles_.span().subspan(bucket.tile, bucket.tiles),
         .values = input.values.subspan(std::size_t(bucket.flat.first), std::size_t(bucket.flat.size)),
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
    Communicator& communicator = *context_.communicator;
    const auto answer = [&](std::size_t i) {
        const Bucket& bucket = buckets_[i];
        communicator.wait(stream, sent_[i]);
        serve(bucket);
        communicator.group_begin(stream);
        communicator.all_gather<std::byte>(bytes_of_words(messages_in(replies_.span(), bucket)),
                                           bytes_of_words(reply_.span().subspan(bucket.reply, words(bucket))));
        last_ = answered_[i] = communicator.group_end();
    };
    for (std::size_t i = 0; i < buckets_.size(); ++i) {
        compress(buckets_[i], input);
        communicator.group_begin(stream);
        communicator.all_to_all<std::byte>(bytes_of_words(messages_in(received_.span(), buckets_[i])),
                                           bytes_of_words(messages_in(messages_.span(), buckets_[i])));
        last_ = sent_[i] = communicator.group_end();
        if (i > 0) answer(i - 1);
    }
    if (!buckets_.empty()) answer(buckets_.size() - 1);
    for (std::size_t i = 0; i < buckets_.size(); ++i) {
        const Bucket& bucket = buckets_[i];
        communicator.wait(stream, answered_[i]);
        kernels::onebit_verdict({.layout = bucket.layout,
                                 .groups = groups_.span().subspan(bucket.group, bucket.groups),
                                 .replies = messages_in(replies_.span(), bucket), .finite = finite_.span()}, stream);
    }
}

OnebitMean::Exchanged OnebitMean::exchanged(std::size_t i) const {
    const Bucket& bucket = buckets_[i];
    return {.layout = bucket.layout, .tiles = tiles_.span().subspan(bucket.tile, bucket.tiles), .flat = bucket.flat,
            .error = errors_.span().subspan(bucket.error, std::size_t(bucket.layout.padded())),
            .messages = messages_in(messages_.span(), bucket), .replies = messages_in(replies_.span(), bucket),
            .active = active_in(bucket), .one = scale_ == OnebitScale::bucket};
}

void OnebitMean::commit() {
    for (const Bucket& bucket : buckets_) {
        const auto served = [&](auto all) { return all.subspan(bucket.served, std::size_t(bucket.layout.chunk)); };
        kernels::onebit_commit({.layout = bucket.layout,
                                .tiles = served_tiles_.span().subspan(bucket.served_tile, bucket.served_tiles),
                                .sums = served(sums_.span()), .error = served(server_errors_.span()),
                                .reply = reply_.span().subspan(bucket.reply, words(bucket)), .finite = finite_.span(),
                                .active = active_in(bucket), .chunk = rank_}, context_.stream);
    }
}

std::vector<ShardRange> OnebitMean::served() const {
    std::vector<ShardRange> all;
    for (const Bucket& bucket : buckets_) {
        const std::int64_t first = std::min(bucket.flat.size, rank_ * bucket.layout.chunk),
                           size = std::min(bucket.flat.size - first, bucket.layout.chunk);
        all.push_back({.first = bucket.flat.first + first, .size = size});
    }
    return all;
}

std::int64_t OnebitMean::served_elements() const {
    std::int64_t sum = 0;
    for (const ShardRange& range : served()) sum += range.size;
    return sum;
}

// Padding is masked, and has no errors.
void OnebitMean::copy_errors_to_host(std::span<float> worker, std::span<float> server) const {
    const std::vector<ShardRange> served = this->served();
    float* to = server.data();
    for (std::size_t i = 0; i < buckets_.size(); ++i) {
        const Bucket& bucket = buckets_[i];
        device::copy_to_host(worker.data() + bucket.flat.first, errors_.span().data() + bucket.error,
                             std::size_t(bucket.flat.size) * sizeof(float), context_.stream);
        device::copy_to_host(to, server_errors_.span().data() + bucket.served,
                             std::size_t(served[i].size) * sizeof(float), context_.stream);
        to += served[i].size;
    }
}

void OnebitMean::copy_errors_from_host(std::span<const float> worker, std::span<const float> server) {
    require(std::ssize(worker) == elements_ && std::ssize(server) == served_elements(), "the number of errors",
            worker.size() + server.size(), std::to_string(elements_ + served_elements()));
    const device::SyncIfThrown guard(context_.stream);
    const std::vector<ShardRange> served = this->served();
    const float* from = server.data();
    for (std::size_t i = 0; i < buckets_.size(); ++i) {
        const Bucket& bucket = buckets_[i];
        device::copy_to_device(errors_.span().data() + bucket.error, worker.data() + bucket.flat.first,
                               std::size_t(bucket.flat.size) * sizeof(float), context_.stream);
        device::copy_to_device(server_errors_.span().data() + bucket.served, from,
                               std::size_t(served[i].size) * sizeof(float), context_.stream);
        from += served[i].size;
    }
    context_.stream.sync();
}

std::span<float> OnebitMean::error_memory() const { return errors_.span().first(std::size_t(elements_)); }

}  // namespace llmc
