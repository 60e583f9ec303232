// adamw.h - AdamW for all parameters that are in no whole matrix (gradient_buckets.h), or at ZeRO stages 1 and 2 for
// this rank's shards of them
//
// Source    kernels/adamw.h
#pragma once
#include "llmc/model/optimizer.h"

namespace llmc {

class AdamW final : public Optimizer {
public:
    // All must outlive it.
    AdamW(const Model& model, GradientExchange& gradients, const OptimizerSettings& settings, Context& context);

    void update(Model& model, std::span<kernels::StepScalars> scalars, const Rates& rates) override;
    std::vector<StateFile> state() const override;

    // Of the elements that this rank owns (gradient_buckets.h).
    std::span<float> first_moments() const { return first_.span(); }
    std::span<float> second_moments() const { return second_.span(); }

private:
    Context& context_;
    const std::vector<ParameterSpec>& parameters_;
    GradientExchange& gradients_;
    OptimizerSettings settings_;
    ShardSegments segments_;
    device::Array<float> first_, second_;
};

}  // namespace llmc
