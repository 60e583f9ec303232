// optimizer.h - what an optimizer is, the list of them (OptimizerKind), and one step with one (OptimizerStep)
#pragma once
#include <any>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "kernels/adamw.h"
#include "kernels/device/memory.h"
#include "kernels/grad_norm.h"
#include "llmc/base/json_text.h"
#include "llmc/base/names.h"
#include "llmc/base/option.h"
#include "llmc/model/gradient_exchange.h"
#include "llmc/model/model.h"
#include "llmc/model/optimizer_state.h"

namespace llmc {

struct OptimizerKind;
extern const OptimizerKind kAdamW, kOnebitAdam, kMuon;
inline constexpr Named<const OptimizerKind*> kOptimizers[] = {{"adamw", &kAdamW},
                                                              {"onebit-adam", &kOnebitAdam},
                                                              {"muon", &kMuon}};

// Of outer steps (outer_steps.h). 0 workers and NaN are auto, until a run knows its ranks.
struct OuterSettings {
    std::int64_t every = 0;                   // steps of a round; 0: no outer steps
    std::int64_t start_step = 0;              // data-parallel steps before the first round
    double learning_rate = NAN, momentum = NAN;
    std::int64_t bits = 32;                   // of an element of what workers exchange: 32, 4 or 1
    bool errors = false;                      // those of compression are carried over to the next round,
    double error_decay = 0.9;                 // decayed by this; always with 1 bit
    std::int64_t workers = 0;                 // of the run
    // Known to a run:
    std::int64_t seq_len = 0;                 // later rows of the position table are not exchanged
    std::optional<std::int64_t> last_step{};  // of the run, which ends its last round
};

struct OptimizerSettings {
    double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1;
    double max_grad_norm = 1;   // 0: no clipping
    bool scales_beta2 = false;  // to the power of Input::relative: a decay of so much per token
    double max_loss_z = 0, max_norm_z = 0;  // a step above either bound is skipped (OutlierWindow); 0: no bound
    // bf16 parameters are rounded stochastically, with this seed; empty: to nearest
    std::optional<std::uint64_t> rounding_seed{};
    const OptimizerKind* kind = &kAdamW;
    std::any own{};  // settings that this kind alone has, of OptimizerKind::settings
    OuterSettings outer{};
    std::any flags_of_kinds[std::size(kOptimizers)]{};  // filled by add_options()
};
void add_options(OptionList& list, OptimizerSettings& settings);
// As add_options() left them.
const std::any& own_flags(const OptimizerSettings& settings);

// What an outer step did, for the log.
struct OuterRound {
    std::int64_t steps = 0;       // the number of steps before it
    std::int64_t round = 0;       // counted from 1
    std::int64_t bytes_sent = 0;  // by this rank
    double change = 0, mean_change = 0;  // |change| of a worker's weights, its mean over workers; |their mean change|
    double cosine = 0;                   // the mean between the changes of two workers; NaN: unknown
    double loss = 0;                     // of the last step, the mean over workers
    bool skipped = false;                // the mean was not finite: all returned to the anchor
    int skipped_in_a_row = 0;
};

class OptimizerStep;

// The update of parameters from gradients. It stores state of its own in device memory, and decides what a checkpoint
// has of it; a step's norm, scalars and skipping are common to all (OptimizerStep).
class Optimizer {
public:
    virtual ~Optimizer() = default;
    Optimizer(const Optimizer&) = delete;
    Optimizer& operator=(const Optimizer&) = delete;

    struct Rates {
        float learning_rate, beta2;  // of a step; beta2: of second moments
    };
    // Enqueues the update of all elements that this rank owns, and starts the all-gather of parameters, for which the
    // model's next forward pass waits. A skipped step (`scalars`) changes nothing.
    virtual void update(Model& model, std::span<kernels::StepScalars> scalars, const Rates& rates) = 0;
    // Called when the step is enqueued.
    virtual void enqueued(const OptimizerStep& /*step*/) {}

    // What checkpoints have, at this point of the run. The same names on all ranks.
    virtual std::vector<StateFile> state() const = 0;
    // Counters, the same on all ranks, in trainer_state.json; null: none.
    virtual JsonValue counts() const { return {}; }
    // Sets the counters, after `updates` updates and `skipped` skipped steps. Allocates what state() then lists.
    virtual void restore(const JsonValue& /*counts*/, std::int64_t /*updates*/, std::int64_t /*skipped*/) {}
    // Called when the shards of state() are filled. May wait.
    virtual void restored() {}
    // The phase of the last step, `stage` in the log, such as "warm-up"; empty: the optimizer has no phases.
    virtual const char* phase() const { return ""; }
    // What begins with this phase, for the terminal.
    virtual const char* phase_begins() const { return ""; }

    // ---- for local steps (outer_steps.h)
    // Every rank has moments, and within a round weights, of its own.
    virtual bool is_local() const { return false; }
    // Within a round, in flat order, what a checkpoint has as the model; empty: the master weights.
    virtual std::span<const float> weights_to_save() const { return {}; }
    // Local steps have been made since the last outer step: the weights are neither evaluated nor the model.
    bool in_round() const { return !weights_to_save().empty(); }
    // The outer step that followed `steps` steps, once; empty: none did. Waits for it.
    virtual std::optional<OuterRound> round_after(std::int64_t /*steps*/) { return {}; }

protected:
    Optimizer() = default;
};

// Calls update(shard, its parameters, its master weights) for all elements that this rank owns; after those of a bucket
// it starts the gather of the bucket, overlapped with the update of the next one. T is the type of the parameters.
template <class T, class Update>
void update_shards(Model& model, const GradientBuckets& buckets, Context& context, Update&& update) {
    const std::span<T> parameters = model.parameters<T>();
    Communicator& communicator = *context.worker;
    const std::span<float> master = model.master_weights();
    const std::vector<OwnedShard>& owned = buckets.owned();
    for (std::size_t i = 0; i < owned.size(); ++i) {
        const OwnedShard& shard = owned[i];
        update(shard, shard.flat.of(parameters),
               model.master_weights_are_flat() ? shard.flat.of(master) : shard.owned.of(master));
        if (!shard.bucket || (i + 1 < owned.size() && owned[i + 1].bucket == shard.bucket)) continue;
        communicator.group_begin(context.stream);
        buckets.gather<T>(communicator, *shard.bucket, buckets[*shard.bucket].flat.of(parameters));
        model.parameters_arrive(*shard.bucket, communicator.group_end());
    }
}
// How the parameters from `first` on, in the flat array, are rounded.
kernels::Rounding rounding_of(const OptimizerSettings& settings, std::int64_t first);

// Which elements of each owned shard have weight decay, for its kernel launch.
class ShardSegments {
public:
    ShardSegments(const ParameterTable& table, const GradientBuckets& buckets, device::StreamRef stream);  // waits
    // With ends relative to its start.
    std::span<const kernels::DecaySegment> of(const OwnedShard& shard) const {
        return ranges_.at(shard.flat.first).of(segments_.span());
    }

private:
    std::map<std::int64_t, ElementRange> ranges_;  // of segments_, by the shard's first element
    device::Array<kernels::DecaySegment> segments_;
};

// The number of updates and skipped steps so far, the outlier window, and the optimizer's counters.
struct OptimizerCounts {
    std::int64_t updates = 0;
    std::int32_t skipped_steps = 0;
    double second_surplus = 0;              // StepScalars'
    std::vector<double> losses{}, norms{};  // of the last steps with an update, oldest first; of the same length
    JsonValue own{};                        // Optimizer::counts()
    bool operator==(const OptimizerCounts&) const = default;
};

// Flags that an optimizer's own settings may depend on.
struct OptimizerFlags {
    std::int64_t zero_stage = 0, warmup_steps = 0;
    bool is_timed = false;         // the length of the run is a time
    std::span<const int> nodes{};  // nodes_of() all ranks; empty: not known yet
};

// A run before its first step.
struct OptimizerRun {
    const OptimizerSettings& settings;
    const ParameterTable& table;
    const Sharding& sharding;
    const OptimizerCounts& before;            // at the end of the run that is resumed
    std::int64_t step_tokens;
    std::optional<std::int64_t> total_steps;  // empty: the length is a time
    int ranks_here;                           // on this machine
    bool reduce_in_bf16;
    kernels::DType dtype;                     // of parameters
};
// What an optimizer reports of it: lines for the terminal, fields for the log (an object), a note. Each may be empty.
struct OptimizerReport {
    std::string lines{};
    JsonValue fields{};
    std::string note{}, details{};  // details: with --verbose
};

// Device bytes of an array, for the memory plan; `copied`: as much of it as this rank copies for a checkpoint.
struct OptimizerBytes {
    std::string what;
    std::size_t bytes, copied;
};

// All that the program knows of an optimizer.
struct OptimizerKind {
    const char *title = "AdamW", *help = "";  // in texts; in --help, after its name
    bool whole_matrices = false;              // needs one owner for each matrix of the blocks (Sharding)
    bool constant_batch = false;              // needs steps of one size
    bool local_gradients = false;             // needs GradientExchange::Settings::may_stay_local
    double rate = 1;                          // a good learning rate, relative to AdamW's
    const char* on_other_model = "";          // a note on starting from a model that another optimizer has trained

    // The defaults of its own flags, whose names begin with the first word of its name; adds an entry for each to the
    // list; makes OptimizerSettings::own of them. Throws Error for flags that cannot be combined.
    std::any (*own)() = [] { return std::any(); };
    void (*flags)(OptionList& list, std::any& own) = [](OptionList&, std::any&) {};
    std::any (*settings)(const std::any& own, const OptimizerFlags& flags) =
        [](const std::any& own, const OptimizerFlags&) { return own; };

    // Model, gradients and context must outlive the optimizer.
    std::unique_ptr<Optimizer> (*make)(const Model& model, GradientExchange& gradients,
                                       const OptimizerSettings& settings, Context& context);
    // Of its large arrays.
    std::vector<OptimizerBytes> (*bytes)(const OptimizerSettings& settings, const ParameterTable& table,
                                         const Sharding& sharding, kernels::DType dtype);
    OptimizerReport (*report)(const OptimizerRun& run) = [](const OptimizerRun&) { return OptimizerReport(); };
    // What it measures, before gradients and optimizer have memory. Every rank calls it.
    OptimizerReport (*measure)(const OptimizerRun& run, Context& context) =
        [](const OptimizerRun&, Context&) { return OptimizerReport(); };
    // Throws Error for counts, in `file`, or flags that the checkpoint cannot have. `then`, `now`: its own flags.
    void (*check_resumption)(const OptimizerRun& run, const std::any& then, const std::any& now,
                             const std::string& file) =
        [](const OptimizerRun&, const std::any&, const std::any&, const std::string&) {};
};

class OptimizerStep {
public:
    // `gradients` are those of the model. All must outlive it.
    OptimizerStep(const Model& model, GradientExchange& gradients, const OptimizerSettings& settings, Context& context);

    struct Input {
        float learning_rate;
        std::int64_t positions;  // of the global batch: gradients have weight 1 / positions per token
        bool new_size = false;   // the step before had another number
        double relative = 1;     // to the number of the run's first step
    };
    // Call it after the last micro-batch: enqueues reduction, norm, scalars and update on the context's stream, then
    // the copy of the scalars to the host. On return the all-gather of parameters is in progress: the model's next
    // forward pass waits for it.
    void run(Model& model, const Input& input);

    // Computes the bf16 parameters from the master weights, with the same rounding as in the last update. Call it after
    // the model and this state are loaded. Enqueued. In fp32 it gathers weights that a checkpoint within a round has.
    void round_parameters(Model& model);

    OptimizerCounts counts() const;  // synchronizes with the stream
    // Sets the counts, then calls read() for every file of the optimizer's state, which fills it. Waits.
    void load(const OptimizerCounts& counts, const std::function<void(const StateFile&)>& read);
    const Optimizer& optimizer() const { return *optimizer_; }
    std::optional<OuterRound> round_after(std::int64_t steps) { return optimizer_->round_after(steps); }

    // The scalars of the last step, or with steps_back = 1 of the one before; waits for them. Only these two are
    // stored.
    const kernels::StepScalars& scalars(int steps_back = 0) const;
    // The sums over all ranks from which these scalars were computed; overwritten two steps later.
    const kernels::RankSums& totals(int steps_back = 0) const;
    bool scalars_ready() const { return copied_[slot_].is_done(); }
    // When that step ended on the device, of seconds_now(); waits for it. Independent of how far the host has enqueued.
    double ended(int steps_back = 0) const;

private:
    int slot_of(int steps_back) const;
    static constexpr std::size_t kSlotBytes = sizeof(kernels::StepScalars) + sizeof(kernels::RankSums);
    std::byte* host_slot(int slot) const { return host_.data() + std::size_t(slot) * kSlotBytes; }

    Context& context_;
    GradientExchange& gradients_;
    OptimizerSettings settings_;
    std::unique_ptr<Optimizer> optimizer_;
    device::Array<kernels::StepScalars> scalars_;
    device::Array<kernels::RankSums> totals_;
    device::Array<kernels::OutlierWindow> window_;
    device::PinnedMemory host_;  // two slots, written alternately, each with scalars and totals
    device::Event copied_[2];
    device::Stream clock_;  // reads the host's clock after each copy
    device::Event noted_[2];
    std::shared_ptr<double[]> ended_ = std::make_shared<double[]>(2);  // shared with work on `clock_`
    int slot_ = 0;
};

}  // namespace llmc
