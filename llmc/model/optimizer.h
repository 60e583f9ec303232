// optimizer.h - AdamW's state, and one update from the gradients of a step: of all parameters, or at ZeRO stage 1 and 2
// of this rank's shards, which are then gathered from all ranks; and the choice between it and 1-bit Adam
#pragma once
#include <functional>
#include <memory>
#include <optional>

#include "kernels/adamw.h"
#include "kernels/device/memory.h"
#include "kernels/grad_norm.h"
#include "llmc/model/gradient_exchange.h"
#include "llmc/model/model.h"
#include "llmc/model/onebit_settings.h"

namespace llmc {

struct AdamWSettings {
    float beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f, weight_decay = 0.1f;
    float max_grad_norm = 1;  // 0: no clipping
    double max_loss_z = 0, max_norm_z = 0;  // a step above one of them is skipped (outlier_window.h); 0: none is
    // bf16 parameters are rounded stochastically, with this seed; empty: to nearest
    std::optional<std::uint64_t> rounding_seed{};
    std::optional<OnebitSettings> onebit{};  // 1-bit Adam: AdamW until it freezes the second moment
};

// Bytes on the device besides the model's own, of AdamW's moments.
std::size_t optimizer_bytes(const ParameterTable& table, const Sharding& sharding = {});

class Optimizer {
public:
    // The model's gradients; both must outlive the optimizer.
    Optimizer(const Model& model, GradientExchange& gradients, const AdamWSettings& settings, Context& context);
    virtual ~Optimizer() = default;
    Optimizer(const Optimizer&) = delete;
    Optimizer& operator=(const Optimizer&) = delete;

    struct StepInput {
        float learning_rate;
        std::int64_t positions;  // of the global batch: the gradients carry weight 1 / positions a token
    };
    // After the last micro-batch: reduction, norm, scalars and update, enqueued on the context's stream; the scalars'
    // copy to the host follows them. The gathered parameters are on their way when it returns: the model's next forward
    // pass holds for them.
    void step(Model& model, const StepInput& input);

    // The working parameters from the master weights, as the last update rounded them: once the model and this state
    // are loaded. Enqueued; nothing in fp32.
    void round_parameters(Model& model);

    // What a checkpoint holds beside the moments: updates made and steps skipped so far, and the outlier window.
    struct Counts {
        std::int64_t updates = 0;
        std::int32_t skipped_steps = 0;
        std::vector<double> losses{}, norms{};  // of the last steps that made an update, the oldest first; as many
        OnebitCounts onebit{};
        bool operator==(const Counts&) const = default;
    };
    virtual Counts counts() const;  // waits
    // Sets counts and moments; read(first, first_moments, second_moments) fills those of elements
    // [first, first + size) of the flat array of parameters. Waits.
    virtual void load(const Counts& counts,
                      const std::function<void(std::int64_t, std::span<float>, std::span<float>)>& read);
    // Of what this rank owns, into host memory. Enqueued.
    void copy_moments_to_host(std::span<float> first_moments, std::span<float> second_moments) const;
    // What 1-bit Adam keeps beside them, at this point of the run. AdamW: nothing.
    virtual OnebitState onebit_state() const { return {}; }
    // ... `elements` of it, into host memory. Enqueued.
    virtual void copy_onebit_to_host(std::span<float>) const {}
    // ... and back, after load(): arrays as onebit_state() says. Waits.
    virtual void load_onebit(std::span<const float>) {}
    // Of the last step: "warm-up", "compressed" or "frozen"; empty: the optimizer has no stages.
    virtual const char* stage() const { return ""; }

    // The scalars of the step before `steps_back` others; waits until they are there. Two steps are kept.
    const kernels::StepScalars& scalars(int steps_back = 0) const;
    // The sums over all ranks that these scalars come from; overwritten two steps later.
    kernels::ConstRankSums totals(int steps_back = 0) const;
    bool scalars_ready() const { return copied_[slot_].is_done(); }

    // Of what this rank owns (gradient_buckets.h).
    std::span<float> first_moments() const { return first_.span(); }
    std::span<float> second_moments() const { return second_.span(); }

protected:
    // What one launch updates.
    struct Launch {
        OwnedShard shard;
        std::size_t first_segment, segments;
    };
    kernels::Rounding rounding(const OwnedShard& shard) const {
        return {.stochastic = settings_.rounding_seed.has_value(), .seed = settings_.rounding_seed.value_or(0),
                .first_element = shard.first};
    }
    // Enqueues AdamW's update of all that this rank owns.
    virtual void update(Model& model);

    Context& context_;
    GradientExchange& gradients_;
    AdamWSettings settings_;
    std::vector<Launch> launches_;
    device::Array<float> first_, second_;
    device::Array<kernels::DecaySegment> segments_;
    device::Array<kernels::StepScalars> scalars_;

private:
    // Behind a step, before the next one's first micro-batch.
    virtual void step_ends() {}

    template <class T> void adamw(Model& model, std::span<T> parameters);
    template <class T, class Update> void update_all(Model& model, std::span<T> parameters, Update&& update);
    std::byte* host_slot(int slot) const {
        return host_.data() + std::size_t(slot) * (sizeof(kernels::StepScalars) + totals_.size() * sizeof(double));
    }

    device::Array<double> totals_;
    device::Array<kernels::OutlierWindow> window_;
    device::PinnedMemory host_;  // two slots, written in turn, each scalars and totals
    device::Event copied_[2];
    int slot_ = 0;
};

// The optimizer of the settings: all of the above must outlive it. 1-bit Adam needs an exchange whose gradients may
// stay local.
std::unique_ptr<Optimizer> make_optimizer(const Model& model, GradientExchange& gradients,
                                          const AdamWSettings& settings, Context& context);

}  // namespace llmc
