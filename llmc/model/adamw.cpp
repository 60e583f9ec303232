// adamw.cpp - AdamW's moments, and its update of the elements that this rank owns
#include "llmc/model/adamw.h"

#include "llmc/model/context.h"

namespace llmc {

AdamW::AdamW(const Model& model, GradientExchange& gradients, const OptimizerSettings& settings, Context& context)
    : context_(context),
      parameters_(model.table().tensors()),
      gradients_(gradients),
      settings_(settings),
      segments_(model.table(), gradients.buckets(), context.stream) {
    const auto elements = std::size_t(gradients.buckets().elements_outside_matrices());
    first_ = device::Array<float>(elements);
    second_ = device::Array<float>(elements);
    first_.zero(context.stream);
    second_.zero(context.stream);
}

void AdamW::update(Model& model, std::span<kernels::StepScalars> scalars, const Rates& rates) {
    const auto update_as = [&]<class T>(T) {
        update_shards<T>(model, gradients_.buckets(), context_,
                         [&](const OwnedShard& shard, std::span<T> parameter, std::span<float> master) {
            if (shard.matrix) return;
            kernels::adamw<T>({.parameter = parameter, .master = master, .m = shard.owned.of(first_.span()),
                               .v = shard.owned.of(second_.span()), .grad = gradients_.reduced(shard),
                               .segments = segments_.of(shard), .scalars = scalars, .beta1 = float(settings_.beta1),
                               .beta2 = rates.beta2, .eps = float(settings_.eps),
                               .weight_decay = float(settings_.weight_decay),
                               .rounding = rounding_of(settings_, shard.flat.first)}, context_.stream);
        });
    };
    if (model.dtype() == kernels::DType::bf16) update_as(kernels::bf16{});
    else update_as(0.0f);
}

std::vector<StateFile> AdamW::state() const {
    std::vector<StateShard> first, second;
    for (const OwnedShard& shard : gradients_.buckets().owned()) {
        if (shard.matrix) continue;
        first.push_back({shard.flat.first, shard.owned.of(first_.span())});
        second.push_back({shard.flat.first, shard.owned.of(second_.span())});
    }
    const bool divided = gradients_.buckets().sharding().shards_state();
    return {{.name = "optimizer", .by = divided ? StateFile::By::first_worker : StateFile::By::rank_0,
             .quantities = {{.name = "first_moment", .tensors = by_parameter(parameters_, first)},
                            {.name = "second_moment", .tensors = by_parameter(parameters_, second),
                             .non_negative = true}}}};
}

constinit const OptimizerKind kAdamW{
    .make = [](const Model& model, GradientExchange& gradients, const OptimizerSettings& settings,
               Context& context) -> std::unique_ptr<Optimizer> {
        return std::make_unique<AdamW>(model, gradients, settings, context);
    },
    .bytes = [](const OptimizerSettings&, const ParameterTable& table, const Sharding& sharding, kernels::DType) {
        const auto elements = std::size_t(GradientBuckets(table, sharding).elements_outside_matrices());
        const std::size_t bytes = 2 * elements * sizeof(float);
        const bool copies = sharding.shards_state() || sharding.rank == 0;
        return std::vector<OptimizerBytes>{{"Adam's moments, fp32", bytes, copies ? bytes : 0}};
    }};

}  // namespace llmc
