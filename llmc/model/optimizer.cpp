// optimizer.cpp - the part of a step that all optimizers share
#include "llmc/model/optimizer.h"

#include <algorithm>
#include <cmath>

#include "kernels/device/range.h"
#include "llmc/base/clock.h"
#include "llmc/model/outer_steps.h"

namespace llmc {

using kernels::OutlierWindow, kernels::StepScalars;

kernels::Rounding rounding_of(const OptimizerSettings& settings, std::int64_t first) {
    return {.stochastic = settings.rounding_seed.has_value(), .seed = settings.rounding_seed.value_or(0),
            .first_element = first};
}

void add_options(OptionList& list, OptimizerSettings& s) {
    list.group("Batch and length");
    list.entry("batch-beta-scaling", s.scales_beta2,
        "decay second moments by beta2^(tokens of the step / tokens of the first step): the same decay per token");
    list.group("Optimizer");
    list.entry("c,weight-decay", s.weight_decay, "weight decay, of matrices and embeddings only",
        Real{0, 1e3}, ByRun{});
    list.entry("beta1", s.beta1, "AdamW decay rate of the first moment", Real{0, 0.9999999});
    list.entry("beta2", s.beta2, "AdamW decay rate of the second moment", Real{0, 0.9999999}, ByRun{});
    list.entry("eps", s.eps, "AdamW epsilon", Real{1e-30, 1});
    list.entry("grad-clip", s.max_grad_norm, "clip the gradient to this global L2 norm; 0: off", Real{0, 1e30});
    list.entry("skip-loss-z", s.max_loss_z,
        "skip the update of a step whose loss is more than this many standard deviations above the mean of the last "
        "128 steps that made an update; 0: off",
        Real{0, 1e30});
    list.entry("skip-norm-z", s.max_norm_z, "like --skip-loss-z, for the gradient norm before clipping; 0: off",
        Real{0, 1e30});
    std::string optimizers = "optimizer";
    for (const auto& [name, kind] : kOptimizers)
        if (*kind->help) optimizers.append("; ").append(name).append(" ").append(kind->help);
    list.entry("optimizer", s.kind, optimizers, kOptimizers, ByRun{});
    for (std::size_t i = 0; i < std::size(kOptimizers); ++i) {
        const auto& [name, kind] = kOptimizers[i];
        std::any& own = s.flags_of_kinds[i];
        if (!own.has_value()) own = kind->own();
        list.need({"optimizer", std::string(name)});
        kind->flags(list, own);
    }
    list.need();
}

const std::any& own_flags(const OptimizerSettings& settings) {
    const auto kind = std::ranges::find(kOptimizers, settings.kind, [](const auto& named) { return named.second; });
    return settings.flags_of_kinds[kind - kOptimizers];
}

ShardSegments::ShardSegments(const ParameterTable& table, const GradientBuckets& buckets, device::StreamRef stream) {
    const auto of_table = table.decay_segments();
    std::vector<kernels::DecaySegment> segments;
    for (const OwnedShard& shard : buckets.owned()) {
        const std::int64_t first = std::ssize(segments);
        for (const kernels::DecaySegment& segment : of_table) {
            if (segment.end <= shard.flat.first) continue;
            segments.push_back({std::min(segment.end, shard.flat.end()) - shard.flat.first, segment.decays});
            if (segment.end >= shard.flat.end()) break;
        }
        ranges_[shard.flat.first] = {first, std::ssize(segments) - first};
    }
    const device::SyncIfThrown guard(stream);
    segments_ = device::Array<kernels::DecaySegment>(segments, stream);
    device::sync(stream);  // before the host copy is freed
}

namespace {

std::unique_ptr<Optimizer> make_optimizer(const Model& model, GradientExchange& gradients,
                                          const OptimizerSettings& settings, Context& context) {
    auto inner = settings.kind->make(model, gradients, settings, context);
    if (settings.outer.every == 0) return inner;
    return make_outer_steps(std::move(inner), model, gradients, settings, context);
}

}  // namespace

OptimizerStep::OptimizerStep(const Model& model, GradientExchange& gradients, const OptimizerSettings& settings,
                             Context& context)
    : context_(context),
      gradients_(gradients),
      settings_(settings),
      optimizer_(make_optimizer(model, gradients, settings, context)),
      scalars_(1),
      totals_(1),
      window_(1),
      host_(2 * kSlotBytes) {
    require(!settings.rounding_seed || model.dtype() == kernels::DType::bf16,
            "the type of stochastically rounded parameters", "fp32", "bf16");
    scalars_.zero(context.stream);
    window_.zero(context.stream);
}

void OptimizerStep::run(Model& model, const Input& input) {
    const device::StreamRef stream = context_.stream;
    gradients_.finish();
    const device::Range range("optimizer");
    if (input.new_size) window_.zero(stream);  // losses and norms of larger batches vary less
    const double power = settings_.scales_beta2 ? input.relative : 1;
    kernels::step_scalars({.scalars = scalars_.span(), .window = window_.span(), .totals = totals_.span(),
                           .rank_sums = gradients_.sums().rank_sums(), .positions = input.positions,
                           .learning_rate = input.learning_rate, .max_norm = float(settings_.max_grad_norm),
                           .beta1 = float(settings_.beta1), .beta2 = float(settings_.beta2), .second_power = power,
                           .max_loss_z = settings_.max_loss_z, .max_norm_z = settings_.max_norm_z}, stream);
    optimizer_->update(model, scalars_.span(),
                       {.learning_rate = input.learning_rate,
                        .beta2 = power == 1 ? float(settings_.beta2) : float(std::pow(float(settings_.beta2), power))});
    slot_ ^= 1;
    device::copy_to_host(host_slot(slot_), scalars_.span().data(), sizeof(StepScalars), stream);
    device::copy_to_host(host_slot(slot_) + sizeof(StepScalars), totals_.span().data(), sizeof(kernels::RankSums),
                         stream);
    copied_[slot_].record(stream);
    device::wait(clock_, copied_[slot_]);
    device::call_on_host(clock_, [ended = ended_, slot = slot_] { ended[std::size_t(slot)] = seconds_now(); });
    noted_[slot_].record(clock_);
    optimizer_->enqueued(*this);
}

void OptimizerStep::round_parameters(Model& model) {
    if (model.dtype() != kernels::DType::bf16) {
        // Within a round each rank of a worker has read what it owns.
        if (optimizer_->in_round()) update_shards<float>(model, gradients_.buckets(), context_, [](auto&&...) {});
        return;
    }
    update_shards<kernels::bf16>(
        model, gradients_.buckets(), context_,
        [&](const OwnedShard& shard, std::span<kernels::bf16> parameter, std::span<float> master) {
            kernels::round_parameters({.parameter = parameter, .master = master, .scalars = scalars_.span(),
                                       .rounding = rounding_of(settings_, shard.flat.first)}, context_.stream);
        });
}

OptimizerCounts OptimizerStep::counts() const {
    const StepScalars now = scalars_.download(context_.stream)[0];
    OptimizerCounts counts{.updates = now.adam_step, .skipped_steps = now.skipped_steps,
                           .second_surplus = now.second_surplus, .own = optimizer_->counts()};
    const OutlierWindow window = window_.download(context_.stream)[0];
    for (int i = 0; i < window.count; ++i) {
        const int slot = window.count < OutlierWindow::kSize ? i : (window.next + i) % OutlierWindow::kSize;
        counts.losses.push_back(window.losses[slot]);
        counts.norms.push_back(window.norms[slot]);
    }
    return counts;
}

void OptimizerStep::load(const OptimizerCounts& counts, const std::function<void(const StateFile&)>& read) {
    const StepScalars scalars{.adam_step = counts.updates, .skipped_steps = counts.skipped_steps,
                              .second_surplus = counts.second_surplus};
    require(counts.losses.size() <= OutlierWindow::kSize && counts.norms.size() == counts.losses.size(),
            "the number of norms of an outlier window", counts.norms.size(), "the number of losses, at most 128");
    const auto held = std::int32_t(counts.losses.size());
    OutlierWindow window{.count = held, .next = held % OutlierWindow::kSize};
    std::ranges::copy(counts.losses, window.losses);
    std::ranges::copy(counts.norms, window.norms);
    const device::SyncIfThrown guard(context_.stream);
    scalars_.upload(std::span(&scalars, 1), context_.stream);
    window_.upload(std::span(&window, 1), context_.stream);
    context_.stream.sync();
    optimizer_->restore(counts.own, counts.updates, counts.skipped_steps);
    for (const StateFile& file : optimizer_->state()) read(file);
    optimizer_->restored();
}

int OptimizerStep::slot_of(int steps_back) const {
    require(steps_back == 0 || steps_back == 1, "the steps between two scalars", steps_back, "0 or 1");
    return slot_ ^ steps_back;
}

const StepScalars& OptimizerStep::scalars(int steps_back) const {
    const int slot = slot_of(steps_back);
    copied_[slot].sync();
    return *reinterpret_cast<const StepScalars*>(host_slot(slot));
}

double OptimizerStep::ended(int steps_back) const {
    const int slot = slot_of(steps_back);
    noted_[slot].sync();
    return ended_[std::size_t(slot)];
}

const kernels::RankSums& OptimizerStep::totals(int steps_back) const {
    return *reinterpret_cast<const kernels::RankSums*>(&scalars(steps_back) + 1);  // waits
}

}  // namespace llmc
