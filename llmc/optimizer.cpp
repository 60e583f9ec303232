#include "llmc/optimizer.h"

#include <algorithm>

namespace llmc {

using kernels::StepScalars;

std::size_t optimizer_bytes(const ParameterTable& table, const Sharding& sharding) {
    const std::int64_t elements = sharding.stage == 0 ? table.elements() : GradientBuckets(table, sharding).kept_elements();
    return 2 * std::size_t(elements) * sizeof(float);
}

Optimizer::Optimizer(const Model& model, GradientExchange& gradients, const AdamWSettings& settings, Context& context)
    : context_(context), gradients_(gradients), settings_(settings), totals_(kernels::rank_sums_size(gradients.groups())), scalars_(1),
      host_(2 * (sizeof(StepScalars) + totals_.size() * sizeof(double))) {
    require(!settings.rounding_seed || model.dtype() == kernels::DType::bf16, "the type of stochastically rounded parameters", "fp32", "bf16");
    const auto all_segments = model.table().decay_segments();
    std::vector<kernels::DecaySegment> segments;  // of every part, ends counted from its start
    const auto add = [&](std::int64_t first, std::int64_t size, std::int64_t kept, int bucket) {
        const std::size_t first_segment = segments.size();
        for (const kernels::DecaySegment& segment : all_segments) {
            if (segment.end <= first) continue;
            segments.push_back({std::min(segment.end - first, size), segment.decays});
            if (segment.end - first >= size) break;
        }
        parts_.push_back({first, size, kept, first_segment, segments.size() - first_segment, bucket});
    };
    const GradientBuckets& buckets = gradients.buckets();
    if (gradients.stage() == 0) add(0, model.table().elements(), 0, -1);
    // The next forward pass needs the last bucket first.
    else for (int bucket = buckets.size() - 1; bucket >= 0; --bucket)
        add(buckets[bucket].first + buckets[bucket].piece.first, buckets[bucket].piece.size, buckets[bucket].kept, bucket);
    segments_ = DeviceArray<kernels::DecaySegment>(segments, context.stream);

    const std::int64_t kept = gradients.stage() == 0 ? model.table().elements() : buckets.kept_elements();
    first_ = DeviceArray<float>(std::size_t(kept));
    second_ = DeviceArray<float>(std::size_t(kept));
    first_.zero(context.stream);
    second_.zero(context.stream);
    scalars_.zero(context.stream);
    context.stream.wait();  // before the host's copy goes
}

// update(part, its parameters, its masters) for every part, each followed by the gathering of its bucket beside the update of the next one.
template <class T, class Update> void Optimizer::update_parts(Model& model, std::span<T> parameters, Update&& update) {
    Communicator& communicator = *context_.communicator;
    for (const Part& part : parts_) {
        const auto of_part = [&]<class Element>(std::span<Element> all, std::int64_t first) {
            return all.subspan(std::size_t(first), std::size_t(part.size));
        };
        const std::span<T> piece = of_part(parameters, part.first);
        update(part, piece, of_part(model.masters(), model.has_all_masters() ? part.first : part.kept));
        if (part.bucket < 0) continue;
        communicator.group_begin(context_.stream);
        communicator.all_gather<T>(gradients_.buckets()[part.bucket].in_flat(parameters), piece);
        model.parameters_arrive(part.bucket, communicator.group_end());
    }
}

void Optimizer::step(Model& model, const StepInput& input) {
    const Stream stream = context_.stream;
    gradients_.finish();
    kernels::step_scalars({.scalars = scalars_.span(), .totals = totals_.span(), .rank_sums = gradients_.rank_sums(), .groups = gradients_.groups(),
                           .positions = input.positions, .learning_rate = input.learning_rate, .max_norm = settings_.max_grad_norm,
                           .beta1 = settings_.beta1, .beta2 = settings_.beta2}, stream);
    const auto update_all = [&]<class T>(std::span<T> parameters) {
        update_parts(model, parameters, [&](const Part& part, std::span<T> parameter, std::span<float> master) {
            kernels::adamw<T>({.parameter = parameter, .master = master, .m = first_.span().subspan(std::size_t(part.kept), std::size_t(part.size)),
                               .v = second_.span().subspan(std::size_t(part.kept), std::size_t(part.size)),
                               .grad = part.bucket < 0 ? gradients_.whole() : gradients_.piece(part.bucket),
                               .segments = segments_.span().subspan(part.first_segment, part.segments), .scalars = scalars_.span(),
                               .beta1 = settings_.beta1, .beta2 = settings_.beta2, .eps = settings_.eps, .weight_decay = settings_.weight_decay,
                               .rounding = rounding(part)}, stream);
        });
    };
    if (model.dtype() == kernels::DType::bf16) update_all(model.rounded_parameters());
    else update_all(model.masters());
    slot_ ^= 1;
    copy_to_host(on_host(slot_), scalars_.span().data(), sizeof(StepScalars), stream);
    copy_to_host(on_host(slot_) + sizeof(StepScalars), totals_.span().data(), totals_.size() * sizeof(double), stream);
    copied_[slot_].record(stream);
}

void Optimizer::round_parameters(Model& model) {
    if (model.dtype() != kernels::DType::bf16) return;
    update_parts(model, model.rounded_parameters(), [&](const Part& part, std::span<kernels::bf16> parameter, std::span<float> master) {
        kernels::round_parameters({.parameter = parameter, .master = master, .scalars = scalars_.span(), .rounding = rounding(part)},
                                  context_.stream);
    });
}

const StepScalars& Optimizer::scalars(int steps_back) const {
    require(steps_back == 0 || steps_back == 1, "the steps between two scalars", steps_back, "0 or 1");
    const int slot = slot_ ^ steps_back;
    copied_[slot].wait();
    return *reinterpret_cast<const StepScalars*>(on_host(slot));
}

std::span<const double> Optimizer::totals(int steps_back) const {
    const StepScalars& before = scalars(steps_back);  // waits
    return {reinterpret_cast<const double*>(&before + 1), totals_.size()};
}

}  // namespace llmc
