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
      buckets_(table, settings.sharding),
      sums_(table, buckets_, settings.sharding, settings.small_batches, context),
      written_(std::size_t(written_elements)),
      rounded_(settings.reduce_in_bf16 ? written_.size() : 0) {
    written_.zero(context.stream);  // the gaps between tensors stay 0
}

GradientExchange::~GradientExchange() {
    try {
        context_.worker->sync(last_);
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
    if (sums_.small_batch_ends()) sums_.add_small_batch(bucket, written(bucket), rounded);
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
    Communicator& communicator = *context_.worker;
    const bool all_own = !buckets_.sharding().shards_state();
    const auto enqueue = [&]<class T>(std::span<T> values) {
        for (const BucketPart& part : buckets_[bucket].parts)
            if (part.matrix) communicator.reduce<T>(part.whole.of(values), buckets_.owner(part));
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
    context_.worker->wait(context_.stream, last_ = sums_.gather());
}

void GradientExchange::take_norms() {
    for (int bucket = 0; bucket < buckets_.size(); ++bucket) {
        finish_bucket(bucket);
        sums_.add_reduced(bucket, reduced());
    }
}

}  // namespace llmc
