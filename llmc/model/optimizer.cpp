// optimizer.cpp - AdamW over the shards of a rank, its step's scalars, and the gathering of parameters
#include "llmc/model/optimizer.h"
#include "kernels/device/memory.h"

#include <algorithm>

namespace llmc {

using kernels::StepScalars;

std::size_t optimizer_bytes(const ParameterTable& table, const Sharding& sharding) {
    const std::int64_t elements = sharding.stage == 0 ? table.elements()
                                                      : GradientBuckets(table, sharding).shard_elements();
    return 2 * std::size_t(elements) * sizeof(float);
}

Optimizer::Optimizer(const Model& model, GradientExchange& gradients, const AdamWSettings& settings, Context& context)
    : context_(context),
      gradients_(gradients),
      settings_(settings),
      totals_(kernels::rank_sums_size(gradients.modules())),
      scalars_(1),
      host_(2 * (sizeof(StepScalars) + totals_.size() * sizeof(double))) {
    require(!settings.rounding_seed || model.dtype() == kernels::DType::bf16,
            "the type of stochastically rounded parameters", "fp32", "bf16");
    const auto all_segments = model.table().decay_segments();
    std::vector<kernels::DecaySegment> segments;  // of every shard, ends counted from its start
    const auto add = [&](std::int64_t first, std::int64_t size, std::int64_t offset, int bucket) {
        const std::size_t first_segment = segments.size();
        for (const kernels::DecaySegment& segment : all_segments) {
            if (segment.end <= first) continue;
            segments.push_back({std::min(segment.end - first, size), segment.decays});
            if (segment.end - first >= size) break;
        }
        shards_.push_back({first, size, offset, first_segment, segments.size() - first_segment, bucket});
    };
    const GradientBuckets& buckets = gradients.buckets();
    if (gradients.stage() == 0) add(0, model.table().elements(), 0, -1);
    // The next forward pass needs the last bucket first.
    else for (int bucket = buckets.size() - 1; bucket >= 0; --bucket)
        add(buckets[bucket].first + buckets[bucket].shard.first, buckets[bucket].shard.size,
            buckets[bucket].shard_offset, bucket);
    segments_ = device::Array<kernels::DecaySegment>(segments, context.stream);

    const std::int64_t elements = gradients.stage() == 0 ? model.table().elements() : buckets.shard_elements();
    first_ = device::Array<float>(std::size_t(elements));
    second_ = device::Array<float>(std::size_t(elements));
    first_.zero(context.stream);
    second_.zero(context.stream);
    scalars_.zero(context.stream);
    context.stream.sync();  // before the host's copy goes
}

// update(shard, its parameters, its master weights) for every shard, each followed by the gathering of its bucket
// beside the update of the next one.
template <class T, class Update> void Optimizer::update_shards(Model& model, std::span<T> parameters, Update&& update) {
    Communicator& communicator = *context_.communicator;
    for (const Shard& shard : shards_) {
        const auto of_shard = [&]<class Element>(std::span<Element> all, std::int64_t first) {
            return all.subspan(std::size_t(first), std::size_t(shard.size));
        };
        const std::span<T> values = of_shard(parameters, shard.first);
        update(shard, values,
               of_shard(model.master_weights(), model.has_all_master_weights() ? shard.first : shard.offset));
        if (shard.bucket < 0) continue;
        communicator.group_begin(context_.stream);
        communicator.all_gather<T>(gradients_.buckets()[shard.bucket].in_flat(parameters), values);
        model.parameters_arrive(shard.bucket, communicator.group_end());
    }
}

void Optimizer::step(Model& model, const StepInput& input) {
    const device::StreamRef stream = context_.stream;
    gradients_.finish();
    kernels::step_scalars({.scalars = scalars_.span(), .totals = totals_.span(), .rank_sums = gradients_.rank_sums(),
                           .modules = gradients_.modules(), .positions = input.positions,
                           .learning_rate = input.learning_rate, .max_norm = settings_.max_grad_norm,
                           .beta1 = settings_.beta1, .beta2 = settings_.beta2}, stream);
    const auto update_all = [&]<class T>(std::span<T> parameters) {
        update_shards(model, parameters, [&](const Shard& shard, std::span<T> parameter, std::span<float> master) {
            kernels::adamw<T>({.parameter = parameter, .master = master,
                               .m = first_.span().subspan(std::size_t(shard.offset), std::size_t(shard.size)),
                               .v = second_.span().subspan(std::size_t(shard.offset), std::size_t(shard.size)),
                               .grad = shard.bucket < 0 ? gradients_.whole() : gradients_.shard(shard.bucket),
                               .segments = segments_.span().subspan(shard.first_segment, shard.segments),
                               .scalars = scalars_.span(), .beta1 = settings_.beta1, .beta2 = settings_.beta2,
                               .eps = settings_.eps, .weight_decay = settings_.weight_decay,
                               .rounding = rounding(shard)}, stream);
        });
    };
    if (model.dtype() == kernels::DType::bf16) update_all(model.rounded_parameters());
    else update_all(model.master_weights());
    slot_ ^= 1;
    device::copy_to_host(host_slot(slot_), scalars_.span().data(), sizeof(StepScalars), stream);
    device::copy_to_host(host_slot(slot_) + sizeof(StepScalars), totals_.span().data(), totals_.size() * sizeof(double),
                         stream);
    copied_[slot_].record(stream);
}

void Optimizer::round_parameters(Model& model) {
    if (model.dtype() != kernels::DType::bf16) return;
    update_shards(
        model, model.rounded_parameters(),
        [&](const Shard& shard, std::span<kernels::bf16> parameter, std::span<float> master) {
            kernels::round_parameters(
                {.parameter = parameter, .master = master, .scalars = scalars_.span(), .rounding = rounding(shard)},
                context_.stream);
        });
}

const StepScalars& Optimizer::scalars(int steps_back) const {
    require(steps_back == 0 || steps_back == 1, "the steps between two scalars", steps_back, "0 or 1");
    const int slot = slot_ ^ steps_back;
    copied_[slot].sync();
    return *reinterpret_cast<const StepScalars*>(host_slot(slot));
}

std::span<const double> Optimizer::totals(int steps_back) const {
    const StepScalars& before = scalars(steps_back);  // waits
    return {reinterpret_cast<const double*>(&before + 1), totals_.size()};
}

}  // namespace llmc
