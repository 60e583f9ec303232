// model_weights.cpp - loads weights to the device, and gathers them from all ranks for a checkpoint
#include "llmc/model/model_weights.h"

#include <algorithm>
#include <memory>

#include "kernels/base/error.h"

namespace llmc {

using kernels::bf16;
using kernels::DType;

std::int64_t master_weight_elements(const ParameterTable& table, DType dtype, const Sharding& sharding) {
    return dtype == DType::bf16 ? GradientBuckets(table, sharding).owned_elements() : table.elements();
}

ModelWeights::ModelWeights(const ParameterTable& table, DType dtype, const Sharding& sharding, Context& context)
    : context_(context),
      dtype_(dtype),
      table_(table),
      buckets_(table_, sharding),
      arriving_(std::size_t(buckets_.size())),
      master_weights_(parameter_memory<float>(std::size_t(master_weight_elements(table_, dtype, sharding)),
                                              dtype != DType::bf16)),
      rounded_(parameter_memory<bf16>(dtype == DType::bf16 ? std::size_t(table_.elements()) : 0, true)) {}

template <class T> device::Array<T> ModelWeights::parameter_memory(std::size_t size, bool are_parameters) const {
    return are_parameters && !buckets_.owns_all() ? context_.worker->array<T>(size) : device::Array<T>(size);
}

ModelWeights::~ModelWeights() {
    try {
        for (const CommEvent event : arriving_) context_.worker->sync(event);
    } catch (...) {  // the next use of the communicator throws it again
    }
}

void ModelWeights::load(std::span<const float> host) {
    require(std::int64_t(host.size()) == table_.elements(), "the number of parameters", host.size(),
            std::to_string(table_.elements()));
    wait_for_parameters();
    std::vector<bf16> rounded(rounded_.size());
    const device::SyncIfThrown guard(context_.stream);
    if (master_weights_are_flat()) master_weights_.upload(host, context_.stream);
    else
        for (const OwnedShard& shard : buckets_.owned()) {
            const auto from = shard.flat.of(host);
            device::copy_to_device(shard.owned.of(master_weights_.span()).data(), from.data(), from.size_bytes(),
                                   context_.stream);
        }
    std::transform(host.begin(), host.begin() + std::ptrdiff_t(rounded.size()), rounded.begin(),
                   kernels::bf16_from_float);
    rounded_.upload(rounded, context_.stream);
    context_.stream.sync();  // before the source of the copy is freed
}

void ModelWeights::copy_master_weights_to_host(std::span<float> flat) const {
    const bool receives = context_.world->rank() == 0;
    require(std::int64_t(flat.size()) == (receives ? table_.elements() : 0), "the memory for master weights",
            flat.size(), receives ? std::to_string(table_.elements()) : "none: only rank 0 receives them");
    copy_to_host(master_weights_.span(), master_weights_are_flat(), flat);
}

void ModelWeights::copy_to_host(std::span<const float> values, bool are_flat, std::span<float> flat) const {
    const bool receives = !flat.empty();
    wait_for_parameters();  // in fp32 they are the master weights
    Communicator& communicator = *context_.worker;
    if (are_flat || communicator.size() == 1) {
        const auto copy = [&](const ElementRange& to, const ElementRange& from) {
            device::copy_to_host(to.of(flat).data(), from.of(values).data(), std::size_t(to.size) * sizeof(float),
                                 context_.stream);
        };
        if (receives && are_flat) copy({0, std::ssize(flat)}, {0, std::ssize(flat)});
        else if (receives)
            for (const OwnedShard& shard : buckets_.owned()) copy(shard.flat, shard.owned);
        context_.stream.sync();
        return;
    }
    const device::Array<float> gathered(std::size_t(buckets_.largest()));
    for (int i = 0; i < buckets_.size(); ++i) {
        const GradientBucket& bucket = buckets_[i];
        const auto whole = gathered.span().first(std::size_t(bucket.flat.size));
        for (const OwnedShard& shard : buckets_.owned())
            if (shard.bucket == i)
                device::copy_on_device(whole.subspan(std::size_t(shard.flat.first - bucket.flat.first)).data(),
                                       shard.owned.of(values).data(),
                                       std::size_t(shard.flat.size) * sizeof(float), context_.stream);
        communicator.group_begin(context_.stream);
        buckets_.gather<float>(communicator, i, whole);
        communicator.wait(context_.stream, communicator.group_end());
        if (receives)
            device::copy_to_host(bucket.flat.of(flat).data(), whole.data(), whole.size_bytes(), context_.stream);
    }
    context_.stream.sync();
}

}  // namespace llmc
