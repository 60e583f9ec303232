// gradient_exchange.cpp - common code of all reduction policies: memory of gradients, communication groups, and the
// order of a step
#include "llmc/model/gradient_exchange.h"

#include "kernels/base/error.h"
#include "kernels/device/range.h"
#include "kernels/gradient_copy.h"
#include "llmc/model/context.h"

namespace llmc {

using kernels::bf16;

GradientExchange::GradientExchange(const ParameterTable& table, const Settings& settings, Context& context,
                                   std::int64_t written_elements)
    : context_(context),
      table_(table),
      settings_(settings),
      buckets_(table, settings.sharding),
      in_world_(settings.world.has_value()),
      // The communicator's is what it reduces.
      written_(settings.reduce_in_bf16 ? device::Array<float>(std::size_t(written_elements))
                                       : context.worker->array<float>(std::size_t(written_elements))),
      rounded_(context.worker->array<bf16>(settings.reduce_in_bf16 ? written_.size() : 0)) {
    require(!settings.world || (!settings.sharding.shards_gradients() && !settings.may_stay_local),
            "the ZeRO stage of a worker that leaves others", settings.sharding.stage,
            "0 or 1, with gradients that are summed");
    written_.zero(context.stream);  // the gaps between tensors stay 0
    summing_.emplace(table, settings.world.value_or(settings.sharding), settings.small_batches, 1,
                     settings.world ? *context.world : *context.worker, context);
}

void GradientExchange::leave_world() {
    ranks().sync(last_);
    context_.stream.sync();  // before the old sums are freed
    summing_.emplace(table_, settings_.sharding, settings_.small_batches,
                     context_.world->size() / context_.worker->size(), *context_.worker, context_);
    in_world_ = false;
    last_ = {};
}

GradientExchange::~GradientExchange() {
    try {
        ranks().sync(last_);
    } catch (...) {  // the next use of the communicator throws it again
    }
}

std::span<float> GradientExchange::gradient(int tensor) const {
    const ParameterSpec& spec = table_.tensors()[std::size_t(tensor)];
    const int bucket = buckets_.of_tensor(tensor);
    return written(bucket).subspan(std::size_t(spec.offset - buckets_[bucket].flat.first), std::size_t(spec.size()));
}

void GradientExchange::complete(int bucket) {
    const device::Range range("gradient bucket");
    const auto rounded = reduces() && reduces_in_bf16() ? this->rounded(bucket) : std::span<bf16>();
    if (sums().small_batch_ends()) summing_->sums.add_small_batch(bucket, written(bucket), rounded);
    else if (reduces()) round({offset(bucket), buckets_[bucket].flat.size});
    if (reduces()) reduce(bucket);
}

void GradientExchange::round(const ElementRange& range) {
    if (reduces_in_bf16())
        kernels::gradient_copy<bf16, float>({.out = range.of(rounded()), .in = range.of(written())}, context_.stream);
}
void GradientExchange::widen(const ElementRange& range) {
    if (reduces_in_bf16())
        kernels::gradient_copy<float, bf16>({.out = range.of(written()), .in = range.of(rounded())}, context_.stream);
}

CommEvent GradientExchange::reduce_to_owners(int bucket) {
    Communicator& communicator = ranks();
    const GradientBuckets& divided = summing_->buckets;
    const bool all_own = in_world_ || !buckets_.sharding().shards_state();
    const auto enqueue = [&]<class T>(std::span<T> values) {
        for (const BucketPart& part : divided[bucket].parts)
            if (part.matrix && !in_world_) communicator.reduce<T>(part.whole.of(values), divided.owner(part));
            else if (all_own) communicator.all_reduce<T>(part.whole.of(values));
            else communicator.reduce_scatter<T>(part.shard.of(values), part.whole.of(values));
    };
    communicator.group_begin(context_.stream);
    if (reduces_in_bf16()) enqueue(rounded(bucket));
    else enqueue(written(bucket));
    return last_ = communicator.group_end();
}

void GradientExchange::finish() {
    const device::Range range("finish gradients");
    require(micro().is_last(), "the micro-batches of a step", micro().index + 1, std::to_string(micro().count));
    take_norms();
    ranks().wait(context_.stream, last_ = summing_->sums.gather());
}

void GradientExchange::take_norms() {
    for (int bucket = 0; bucket < buckets_.size(); ++bucket) {
        finish_bucket(bucket);
        summing_->sums.add_reduced(bucket, reduced());
    }
}

}  // namespace llmc
