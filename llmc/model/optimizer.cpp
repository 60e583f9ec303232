// optimizer.cpp - AdamW for the elements that this rank owns, the all-gather of parameters, and the step's scalars
#include "llmc/model/optimizer.h"

#include <algorithm>

#include "kernels/device/memory.h"
#include "kernels/device/range.h"
#include "llmc/model/onebit_adam.h"

namespace llmc {

using kernels::OutlierWindow, kernels::StepScalars;

constexpr std::int64_t kLoadedAtOnce = std::int64_t(1) << 22;  // elements of both moments

std::size_t optimizer_bytes(const ParameterTable& table, const Sharding& sharding) {
    return 2 * std::size_t(GradientBuckets(table, sharding).owned_elements()) * sizeof(float);
}

Optimizer::Optimizer(const Model& model, GradientExchange& gradients, const AdamWSettings& settings, Context& context)
    : context_(context),
      gradients_(gradients),
      settings_(settings),
      scalars_(1),
      totals_(kernels::rank_sums_size(gradients.sums().modules())),
      window_(1),
      host_(2 * (sizeof(StepScalars) + totals_.size() * sizeof(double))) {
    require(!settings.rounding_seed || model.dtype() == kernels::DType::bf16,
            "the type of stochastically rounded parameters", "fp32", "bf16");
    const auto all_segments = model.table().decay_segments();
    std::vector<kernels::DecaySegment> segments;  // of every shard, with ends relative to its start
    for (const OwnedShard& shard : gradients.buckets().owned()) {
        const std::size_t first_segment = segments.size();
        for (const kernels::DecaySegment& segment : all_segments) {
            if (segment.end <= shard.first) continue;
            segments.push_back({std::min(segment.end - shard.first, shard.size), segment.decays});
            if (segment.end - shard.first >= shard.size) break;
        }
        launches_.push_back({shard, first_segment, segments.size() - first_segment});
    }
    const device::SyncIfThrown guard(context.stream);
    segments_ = device::Array<kernels::DecaySegment>(segments, context.stream);

    const auto elements = std::size_t(gradients.buckets().owned_elements());
    first_ = device::Array<float>(elements);
    second_ = device::Array<float>(elements);
    first_.zero(context.stream);
    second_.zero(context.stream);
    scalars_.zero(context.stream);
    window_.zero(context.stream);
    context.stream.sync();  // before the host copy is freed
}

// Calls update(launch, its parameters, its master weights) for all elements that this rank owns; after a shard it
// starts the all-gather of its bucket, overlapped with the update of the next one.
template <class T, class Update> void Optimizer::update_all(Model& model, std::span<T> parameters, Update&& update) {
    Communicator& communicator = *context_.communicator;
    for (const Launch& launch : launches_) {
        const OwnedShard& shard = launch.shard;
        const std::span<T> values = shard.in_flat(parameters);
        const std::span<float> master = model.master_weights();
        update(launch, values, model.has_all_master_weights() ? shard.in_flat(master) : shard.in_owned(master));
        if (!shard.bucket) continue;
        communicator.group_begin(context_.stream);
        communicator.all_gather<T>(gradients_.buckets()[*shard.bucket].in_flat(parameters), values);
        model.parameters_arrive(*shard.bucket, communicator.group_end());
    }
}

void Optimizer::step(Model& model, const StepInput& input) {
    const device::StreamRef stream = context_.stream;
    gradients_.finish();
    const device::Range range("optimizer");
    const StepSums& sums = gradients_.sums();
    kernels::step_scalars({.scalars = scalars_.span(), .window = window_.span(), .totals = totals_.span(),
                           .rank_sums = sums.rank_sums(), .modules = sums.modules(), .positions = input.positions,
                           .learning_rate = input.learning_rate, .max_norm = settings_.max_grad_norm,
                           .beta1 = settings_.beta1, .beta2 = settings_.beta2,
                           .max_loss_z = settings_.max_loss_z, .max_norm_z = settings_.max_norm_z}, stream);
    update(model);
    slot_ ^= 1;
    device::copy_to_host(host_slot(slot_), scalars_.span().data(), sizeof(StepScalars), stream);
    device::copy_to_host(host_slot(slot_) + sizeof(StepScalars), totals_.span().data(), totals_.size() * sizeof(double),
                         stream);
    copied_[slot_].record(stream);
    after_step();
}

void Optimizer::update(Model& model) {
    if (model.dtype() == kernels::DType::bf16) adamw(model, model.rounded_parameters());
    else adamw(model, model.master_weights());
}

template <class T>
void Optimizer::adamw(Model& model, std::span<T> parameters) {
    update_all(model, parameters, [&](const Launch& launch, std::span<T> parameter, std::span<float> master) {
        const OwnedShard& shard = launch.shard;
        kernels::adamw<T>({.parameter = parameter, .master = master, .m = shard.in_owned(first_.span()),
                           .v = shard.in_owned(second_.span()), .grad = gradients_.reduced(shard),
                           .segments = segments_.span().subspan(launch.first_segment, launch.segments),
                           .scalars = scalars_.span(), .beta1 = settings_.beta1, .beta2 = settings_.beta2,
                           .eps = settings_.eps, .weight_decay = settings_.weight_decay,
                           .rounding = rounding(shard)}, context_.stream);
    });
}

void Optimizer::round_parameters(Model& model) {
    if (model.dtype() != kernels::DType::bf16) return;
    update_all(
        model, model.rounded_parameters(),
        [&](const Launch& launch, std::span<kernels::bf16> parameter, std::span<float> master) {
            kernels::round_parameters({.parameter = parameter, .master = master, .scalars = scalars_.span(),
                                       .rounding = rounding(launch.shard)}, context_.stream);
        });
}

Optimizer::Counts Optimizer::counts() const {
    const StepScalars now = scalars_.download(context_.stream)[0];
    Counts counts{.updates = now.adam_step, .skipped_steps = now.skipped_steps};
    const OutlierWindow window = window_.download(context_.stream)[0];
    for (int i = 0; i < window.count; ++i) {
        const int slot = window.count < OutlierWindow::kSize ? i : (window.next + i) % OutlierWindow::kSize;
        counts.losses.push_back(window.losses[slot]);
        counts.norms.push_back(window.norms[slot]);
    }
    return counts;
}

void Optimizer::load(const Counts& counts,
                     const std::function<void(std::int64_t, std::span<float>, std::span<float>)>& read) {
    const StepScalars scalars{.adam_step = counts.updates, .skipped_steps = counts.skipped_steps};
    require(counts.losses.size() <= OutlierWindow::kSize && counts.norms.size() == counts.losses.size(),
            "the number of norms of an outlier window", counts.norms.size(), "the number of losses, at most 128");
    const auto held = std::int32_t(counts.losses.size());
    OutlierWindow window{.count = held, .next = held % OutlierWindow::kSize};
    std::ranges::copy(counts.losses, window.losses);
    std::ranges::copy(counts.norms, window.norms);
    std::vector<float> first, second;  // part of a shard
    const device::SyncIfThrown guard(context_.stream);
    scalars_.upload(std::span(&scalars, 1), context_.stream);
    window_.upload(std::span(&window, 1), context_.stream);
    for (const Launch& launch : launches_)
        for (std::int64_t part = 0; part < launch.shard.size; part += kLoadedAtOnce) {
            const OwnedShard& shard = launch.shard;
            const auto size = std::size_t(std::min(kLoadedAtOnce, shard.size - part));
            context_.stream.sync();  // before the source of the last copy is overwritten
            first.resize(size);
            second.resize(size);
            read(shard.first + part, first, second);
            for (const auto& [moments, from] : {std::pair(first_.span(), &first), std::pair(second_.span(), &second)})
                device::copy_to_device(shard.in_owned(moments).data() + part, from->data(), size * sizeof(float),
                                       context_.stream);
        }
    context_.stream.sync();
}

void Optimizer::copy_moments_to_host(std::span<float> first_moments, std::span<float> second_moments) const {
    for (const auto& [to, from] : {std::pair(first_moments, first_.span()), std::pair(second_moments, second_.span())})
        device::copy_to_host(to.data(), from.data(), from.size_bytes(), context_.stream);
}

const StepScalars& Optimizer::scalars(int steps_back) const {
    require(steps_back == 0 || steps_back == 1, "the steps between two scalars", steps_back, "0 or 1");
    const int slot = slot_ ^ steps_back;
    copied_[slot].sync();
    return *reinterpret_cast<const StepScalars*>(host_slot(slot));
}

kernels::ConstRankSums Optimizer::totals(int steps_back) const {
    const StepScalars& before = scalars(steps_back);  // waits
    return kernels::rank_sums(std::span(reinterpret_cast<const double*>(&before + 1), totals_.size()),
                              gradients_.sums().modules());
}

std::unique_ptr<Optimizer> make_optimizer(const Model& model, GradientExchange& gradients,
                                          const AdamWSettings& settings, Context& context) {
    if (settings.onebit) return make_onebit_adam(model, gradients, settings, context);
    return std::make_unique<Optimizer>(model, gradients, settings, context);
}

}  // namespace llmc
