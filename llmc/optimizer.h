// optimizer.h - AdamW's state, and one update from the gradients of a step
#pragma once
#include <optional>

#include "kernels/adamw.h"
#include "kernels/grad_norm.h"
#include "llmc/model.h"

namespace llmc {

struct AdamWSettings {
    float beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f, weight_decay = 0.1f;
    float max_grad_norm = 1;  // 0: no clipping
    std::optional<std::uint64_t> rounding_seed{};  // bf16 parameters are rounded stochastically, with this seed; empty: to nearest
};

// Bytes on the device besides the model's own.
std::size_t optimizer_bytes(const ParameterTable& table);

class Optimizer {
public:
    Optimizer(const Model& model, const AdamWSettings& settings, Context& context);

    // What a step knows when its gradients are complete. The gradients carry weight 1 / positions a token.
    struct StepInput {
        float learning_rate;
        std::int64_t positions, valid_targets;   // of the global batch
        std::span<const double> loss_sum;        // on the device: nats over all valid targets
    };
    // Norm, scalars and update, enqueued on the context's stream; the scalars' copy to the host follows them.
    void step(Model& model, const StepInput& input);

    // The working parameters from the masters, as the last update rounded them: once the model and this state are loaded. Enqueued; nothing in fp32.
    void round_parameters(Model& model);

    // The scalars of the step before `steps_back` others; waits until they are there. Two steps are kept.
    const kernels::StepScalars& scalars(int steps_back = 0) const;
    bool scalars_ready() const { return copied_[slot_].reached(); }

    std::span<float> first_moments() const { return first_.span(); }
    std::span<float> second_moments() const { return second_.span(); }

private:
    kernels::Rounding rounding() const { return {.stochastic = settings_.rounding_seed.has_value(), .seed = settings_.rounding_seed.value_or(0)}; }

    Context& context_;
    AdamWSettings settings_;
    DeviceArray<float> first_, second_;
    DeviceArray<kernels::DecaySegment> segments_;
    DeviceArray<double> squared_partial_;
    DeviceArray<kernels::StepScalars> scalars_;
    HostMemory host_scalars_;  // two slots, written in turn
    DeviceEvent copied_[2];
    int slot_ = 0;
};

}  // namespace llmc
