// optimizer.h - AdamW's state, and one update from the gradients of a step: of all parameters, or at ZeRO stages 1 and
// 2 of this rank's shards, which are then all-gathered; and the selection between AdamW and 1-bit Adam
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
    double max_loss_z = 0, max_norm_z = 0;  // a step above either bound is skipped (outlier_window.h); 0: no bound
    // bf16 parameters are rounded stochastically, with this seed; empty: to nearest
    std::optional<std::uint64_t> rounding_seed{};
    std::optional<OnebitSettings> onebit{};  // 1-bit Adam: AdamW until it freezes the second moment
};

// Device bytes of AdamW's moments.
std::size_t optimizer_bytes(const ParameterTable& table, const Sharding& sharding = {});

class Optimizer {
public:
    // `gradients` are those of the model; both must outlive the optimizer.
    Optimizer(const Model& model, GradientExchange& gradients, const AdamWSettings& settings, Context& context);
    virtual ~Optimizer() = default;
    Optimizer(const Optimizer&) = delete;
    Optimizer& operator=(const Optimizer&) = delete;

    struct StepInput {
        float learning_rate;
        std::int64_t positions;  // of the global batch: gradients have weight 1 / positions per token
    };
    // Call it after the last micro-batch: enqueues reduction, norm, scalars and update on the context's stream, then
    // the copy of the scalars to the host. On return the all-gather of parameters is in progress: the model's next
    // forward pass waits for it.
    void step(Model& model, const StepInput& input);

    // Computes the bf16 parameters from the master weights, with the same rounding as in the last update. Call it after
    // the model and this state are loaded. Enqueued; no-op in fp32.
    void round_parameters(Model& model);

    // The state in a checkpoint in addition to the moments: updates and skipped steps so far, and the outlier window.
    struct Counts {
        std::int64_t updates = 0;
        std::int32_t skipped_steps = 0;
        std::vector<double> losses{}, norms{};  // of the last steps with an update, oldest first; of the same length
        OnebitCounts onebit{};
        bool operator==(const Counts&) const = default;
    };
    virtual Counts counts() const;  // synchronizes with the stream
    // Sets counts and moments; read(first, first_moments, second_moments) must fill the moments of elements
    // [first, first + size) of the flat array of parameters. Waits.
    virtual void load(const Counts& counts,
                      const std::function<void(std::int64_t, std::span<float>, std::span<float>)>& read);
    // Copies the moments of the elements that this rank owns to host memory. Enqueued.
    void copy_moments_to_host(std::span<float> first_moments, std::span<float> second_moments) const;
    // Describes 1-bit Adam's additional state at this point of the run. AdamW: none.
    virtual OnebitState onebit_state() const { return {}; }
    // Copies that state, onebit_state().elements floats, to host memory. Enqueued.
    virtual void copy_onebit_to_host(std::span<float>) const {}
    // Restores that state, in the layout of onebit_state(), after load(). Waits.
    virtual void load_onebit(std::span<const float>) {}
    // The stage of the last step: "warm-up", "compressed" or "frozen"; empty: the optimizer has no stages.
    virtual const char* stage() const { return ""; }

    // The scalars of the last step, or with steps_back = 1 of the one before; waits for them. Only these two are
    // stored.
    const kernels::StepScalars& scalars(int steps_back = 0) const;
    // The sums over all ranks from which these scalars were computed; overwritten two steps later.
    kernels::ConstRankSums totals(int steps_back = 0) const;
    bool scalars_ready() const { return copied_[slot_].is_done(); }

    // Moments of the elements that this rank owns (gradient_buckets.h).
    std::span<float> first_moments() const { return first_.span(); }
    std::span<float> second_moments() const { return second_.span(); }

protected:
    // The elements that one kernel launch updates.
    struct Launch {
        OwnedShard shard;
        std::size_t first_segment, segments;
    };
    kernels::Rounding rounding(const OwnedShard& shard) const {
        return {.stochastic = settings_.rounding_seed.has_value(), .seed = settings_.rounding_seed.value_or(0),
                .first_element = shard.first};
    }
    // Enqueues the update of all elements that this rank owns.
    virtual void update(Model& model);

    Context& context_;
    GradientExchange& gradients_;
    AdamWSettings settings_;
    std::vector<Launch> launches_;
    device::Array<float> first_, second_;
    device::Array<kernels::DecaySegment> segments_;
    device::Array<kernels::StepScalars> scalars_;

private:
    // Called at the end of step().
    virtual void after_step() {}

    template <class T> void adamw(Model& model, std::span<T> parameters);
    template <class T, class Update> void update_all(Model& model, std::span<T> parameters, Update&& update);
    std::byte* host_slot(int slot) const {
        return host_.data() + std::size_t(slot) * (sizeof(kernels::StepScalars) + totals_.size() * sizeof(double));
    }

    device::Array<double> totals_;
    device::Array<kernels::OutlierWindow> window_;
    device::PinnedMemory host_;  // two slots, written alternately, each with scalars and totals
    device::Event copied_[2];
    int slot_ = 0;
};

// The optimizer for the settings. Model, gradients and context must outlive it. 1-bit Adam needs an exchange with
// may_stay_local.
std::unique_ptr<Optimizer> make_optimizer(const Model& model, GradientExchange& gradients,
                                          const AdamWSettings& settings, Context& context);

}  // namespace llmc
