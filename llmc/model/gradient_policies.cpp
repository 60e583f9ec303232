// gradient_policies.cpp - one class per policy of reducing gradients, and the selection of a policy
//
// Contracts of the methods: gradient_exchange.h.
#include "kernels/base/error.h"
#include "kernels/gradient_copy.h"
#include "llmc/model/context.h"
#include "llmc/model/gradient_exchange.h"

namespace llmc {
namespace {

using kernels::bf16;
using Settings = GradientExchange::Settings;

// Bytes per gradient that the backward pass writes.
std::size_t bytes_written(const Settings& settings) {
    return sizeof(float) + (settings.reduce_in_bf16 ? sizeof(bf16) : 0);
}

// All gradients in one array, summed over the micro-batches; a bucket is reduced once per step, in place.
class WholeGradients : public GradientExchange {
public:
    static std::size_t bytes(const ParameterTable& table, const Settings& settings) {
        return std::size_t(table.elements()) * bytes_written(settings);
    }
    WholeGradients(const ParameterTable& table, const Settings& settings, Context& context)
        : GradientExchange(table, settings, context, table.elements()),
          groups_(std::size_t(buckets().size())) {
        require(settings.small_batches != SmallBatches::micro_batches, "small batches for the noise scale",
                "micro-batches", "ranks or first micro-batches: below stage 2 only the sums of micro-batches exist");
    }

    bool accumulate() const final { return !micro().is_first(); }
    void open(int) final {}  // finish() of the previous step waited for every bucket
    std::span<float> reduced() const final { return written(); }

private:
    std::int64_t offset(int bucket) const final { return buckets()[bucket].flat.first; }
    bool reduces() const override { return micro().is_last(); }
    void reduce(int bucket) final { groups_[std::size_t(bucket)] = reduce_to_owners(bucket); }
    void finish_bucket(int bucket) final {
        ranks().wait(context_.stream, groups_[std::size_t(bucket)]);
        for (const BucketPart& part : buckets()[bucket].parts)
            widen({offset(bucket) + summed(part).first, summed(part).size});
    }

    std::vector<CommEvent> groups_;  // one per bucket
};

// All-reduces until stay_local() is called.
class WholeLocalGradients final : public WholeGradients, public LocalGradients {
public:
    using WholeGradients::WholeGradients;

    void stay_local(std::uint32_t draw, std::span<const ElementRange> summed) override {
        local_ = true;
        draw_ = draw;
        summed_.assign(summed.begin(), summed.end());
    }
    CommEvent begin_sum(Communicator& among, const ElementRange& range, std::span<float> mine) override {
        round(range);
        among.group_begin(context_.stream);
        if (reduces_in_bf16()) among.reduce_scatter<bf16>(rounded_shard(among, range), range.of(rounded()));
        else among.reduce_scatter<float>(mine, range.of(written()));
        return among.group_end();
    }
    void end_sum(Communicator& among, CommEvent event, const ElementRange& range, std::span<float> mine) override {
        among.wait(context_.stream, event);
        if (reduces_in_bf16())
            kernels::gradient_copy<float, bf16>({.out = mine, .in = rounded_shard(among, range)}, context_.stream);
    }

private:
    bool reduces() const override { return !local_ && micro().is_last(); }
    // Sketches all gradients before the summed ranges are all-reduced.
    void take_norms() override {
        if (!local_) return GradientExchange::take_norms();
        add_sketched(written(), draw_);
        if (summed_.empty()) return;
        for (const ElementRange& range : summed_) round(range);
        ranks().group_begin(context_.stream);
        for (const ElementRange& range : summed_)
            if (reduces_in_bf16()) ranks().all_reduce<bf16>(range.of(rounded()));
            else ranks().all_reduce<float>(range.of(written()));
        ranks().wait(context_.stream, ranks().group_end());
        for (const ElementRange& range : summed_) widen(range);
    }

    std::span<bf16> rounded_shard(const Communicator& among, const ElementRange& range) const {
        return shard_of(range.size, among.rank(), among.size()).of(range.of(rounded()));
    }

    bool local_ = false;
    std::uint32_t draw_ = 0;
    std::vector<ElementRange> summed_;
};

// Stores only the sums of what this rank owns. The backward pass writes to working buffers, two alternating ones for
// the blocks and one for the embeddings, from which every micro-batch is reduced.
class ShardedGradients final : public GradientExchange {
public:
    static std::size_t bytes(const ParameterTable& table, const Settings& settings) {
        const GradientBuckets buckets(table, settings.sharding);
        return std::size_t(buffer_elements(buckets)) * bytes_written(settings) +
               std::size_t(buckets.owned_elements()) * sizeof(float);
    }
    ShardedGradients(const ParameterTable& table, const Settings& settings, Context& context)
        : GradientExchange(table, settings, context, buffer_elements(GradientBuckets(table, settings.sharding))),
          shards_(std::size_t(buckets().owned_elements())) {
        const SmallBatches small = settings.small_batches;
        require(small == SmallBatches::none || small == SmallBatches::micro_batches,
                "small batches for the noise scale", small == SmallBatches::ranks ? "ranks" : "first micro-batches",
                "micro-batches: at stage 2 the sum of a rank never exists");
        shards_.zero(context.stream);
    }

    bool accumulate() const override { return false; }
    void open(int bucket) override { drain(buffer_of(bucket)); }
    std::span<float> reduced() const override { return shards_.span(); }

private:
    // A working buffer and the reduction of its bucket, in progress or done.
    struct Buffer {
        std::optional<int> bucket{};
        bool accumulate = false;
        CommEvent group{};
    };
    static std::int64_t buffer_elements(const GradientBuckets& buckets) {
        return 2 * buckets.largest_block() + buckets[buckets.embeddings()].flat.size;
    }
    std::size_t number_of(int bucket) const { return bucket == buckets().embeddings() ? 2 : std::size_t(bucket) % 2; }
    Buffer& buffer_of(int bucket) { return buffers_[number_of(bucket)]; }

    std::int64_t offset(int bucket) const override {
        return std::int64_t(number_of(bucket)) * buckets().largest_block();
    }
    bool reduces() const override { return true; }
    void reduce(int bucket) override {
        buffer_of(bucket) = {.bucket = bucket, .accumulate = !micro().is_first(), .group = reduce_to_owners(bucket)};
    }
    void finish_bucket(int bucket) override {
        if (Buffer& buffer = buffer_of(bucket); buffer.bucket == bucket) drain(buffer);
    }
    // Adds the reduced contents of a buffer to this rank's shards; afterwards it may be overwritten.
    void drain(Buffer& buffer) {
        if (!buffer.bucket) return;
        const int bucket = *buffer.bucket;
        ranks().wait(context_.stream, buffer.group);
        for (const BucketPart& part : buckets()[bucket].parts) {
            const auto add = [&]<class T>(std::span<T> reduced) {
                kernels::gradient_copy<float, T>({.out = ElementRange{part.offset, part.shard.size}.of(shards_.span()),
                                                  .in = part.shard.of(reduced), .accumulate = buffer.accumulate},
                                                 context_.stream);
            };
            reduces_in_bf16() ? add(rounded(bucket)) : add(written(bucket));
        }
        buffer.bucket.reset();
    }

    device::Array<float> shards_;
    Buffer buffers_[3];
};

// Selects the policy and calls use() with its type.
template <class Use> auto with_policy(const Settings& settings, Use&& use) {
    const Sharding& sharding = settings.sharding;
    require(!settings.may_stay_local || sharding.stage == 0, "--zero-stage", sharding.stage,
            "0, because gradients stay local");
    if (settings.may_stay_local) return use.template operator()<WholeLocalGradients>();
    if (sharding.shards_gradients()) return use.template operator()<ShardedGradients>();
    return use.template operator()<WholeGradients>();
}

}  // namespace

std::unique_ptr<GradientExchange> make_gradient_exchange(const ParameterTable& table, const Settings& settings,
                                                         Context& context) {
    return with_policy(settings, [&]<class Policy>() -> std::unique_ptr<GradientExchange> {
        return std::make_unique<Policy>(table, settings, context);
    });
}

LocalGradients& local_gradients(GradientExchange& exchange) {
    auto* const local = dynamic_cast<LocalGradients*>(&exchange);
    require(local, "gradients that stay local", "requested", "an exchange with may_stay_local");
    return *local;
}

std::size_t gradient_bytes(const ParameterTable& table, const Settings& settings) {
    return with_policy(settings, [&]<class Policy>() { return Policy::bytes(table, settings); });
}

}  // namespace llmc
