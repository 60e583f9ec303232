#include "llmc/optimizer.h"

namespace llmc {

using kernels::StepScalars;

std::size_t optimizer_bytes(const ParameterTable& table) { return 2 * std::size_t(table.elements()) * sizeof(float); }

Optimizer::Optimizer(const Model& model, const AdamWSettings& settings, Context& context)
    : context_(context), settings_(settings), first_(std::size_t(model.table().elements())), second_(std::size_t(model.table().elements())),
      squared_partial_(std::size_t(kernels::squared_norm_partials())), scalars_(1),
      host_scalars_(2 * sizeof(StepScalars)) {
    require(!settings.rounding_seed || model.dtype() == kernels::DType::bf16, "the type of stochastically rounded parameters", "fp32", "bf16");
    first_.zero(context.stream);
    second_.zero(context.stream);
    scalars_.zero(context.stream);
    const auto segments = model.table().decay_segments();
    segments_ = DeviceArray<kernels::DecaySegment>(segments, context.stream);
    context.stream.wait();  // before the host's copy goes
}

void Optimizer::step(Model& model, const StepInput& input) {
    const Stream stream = context_.stream;
    kernels::squared_norm(squared_partial_.span(), model.gradients(), stream);
    kernels::step_scalars({.scalars = scalars_.span(), .loss_sum = input.loss_sum, .squared_partial = squared_partial_.span(), .positions = input.positions,
                           .valid_targets = input.valid_targets, .learning_rate = input.learning_rate, .max_norm = settings_.max_grad_norm,
                           .beta1 = settings_.beta1, .beta2 = settings_.beta2}, stream);
    const auto update = [&]<class T>(std::span<T> parameter) {
        kernels::adamw<T>({.parameter = parameter, .master = model.masters(), .m = first_.span(), .v = second_.span(), .grad = model.gradients(),
                           .segments = segments_.span(), .scalars = scalars_.span(), .beta1 = settings_.beta1, .beta2 = settings_.beta2, .eps = settings_.eps,
                           .weight_decay = settings_.weight_decay, .rounding = rounding()}, stream);
    };
    if (model.dtype() == kernels::DType::bf16) update(model.rounded_parameters());
    else update(model.masters());
    slot_ ^= 1;
    copy_to_host(host_scalars_.data() + std::size_t(slot_) * sizeof(StepScalars), scalars_.span().data(), sizeof(StepScalars), stream);
    copied_[slot_].record(stream);
}

void Optimizer::round_parameters(Model& model) {
    if (model.dtype() != kernels::DType::bf16) return;
    kernels::round_parameters({.parameter = model.rounded_parameters(), .master = model.masters(), .scalars = scalars_.span(),
                               .rounding = rounding()}, context_.stream);
}

const StepScalars& Optimizer::scalars(int steps_back) const {
    require(steps_back == 0 || steps_back == 1, "the steps between two scalars", steps_back, "0 or 1");
    const int slot = slot_ ^ steps_back;
    copied_[slot].wait();
    return reinterpret_cast<const StepScalars*>(host_scalars_.data())[slot];
}

}  // namespace llmc
