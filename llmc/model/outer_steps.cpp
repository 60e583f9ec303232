// outer_steps.cpp - rounds of local steps, and the outer step that ends each
#include "llmc/model/outer_steps.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "kernels/base/error.h"
#include "kernels/device/range.h"
#include "kernels/outer.h"
#include "llmc/base/json_text.h"
#include "llmc/model/context.h"
#include "llmc/model/onebit_mean.h"

namespace llmc {
namespace {

constexpr std::size_t kRow = 32;  // doubles of a rank's row: 256 bytes, as an all-gather of equal shards requires
// The squared change of what it owns in the round; the loss of its worker's last step; the mean's squared change.
enum InRow : std::size_t { kChange, kLoss, kMean };
constexpr std::size_t kVerdict = 64;  // ints, likewise

// Partial sums, one per tile, and their total.
struct PartialSums {
    PartialSums() = default;
    PartialSums(std::size_t tiles, device::StreamRef stream) : partial(tiles) {  // waits
        const std::vector<std::int32_t> all{0, std::int32_t(tiles)};
        const device::SyncIfThrown guard(stream);
        start = {all, stream};
        device::sync(stream);
    }
    std::span<double> of(const ElementRange& tiles) const { return tiles.of(partial.span()); }
    void add_up(std::span<double> to, device::StreamRef stream) const {
        kernels::range_sums({.sums = to, .partial = partial.span(), .range_start = start.span()}, stream);
    }
    device::Array<double> partial{};
    device::Array<std::int32_t> start{};
};

// A bit for each element of the flat array: those that the run can change. It cannot change the vocabulary's padding,
// positions beyond its sequences, and the biases of keys, which have no gradient (kernels/bias_gradient.h).
std::vector<std::uint32_t> changing_elements(const ParameterTable& table, std::int64_t seq_len) {
    std::vector<std::uint32_t> bits(std::size_t(ceil_div(table.elements(), 32)));
    const auto mark = [&](std::int64_t first, std::int64_t size, bool changing) {
        for (std::int64_t at = first; at < first + size; ++at) {
            const std::uint32_t bit = 1u << at % 32;
            std::uint32_t& word = bits[std::size_t(at / 32)];
            word = changing ? word | bit : word & ~bit;
        }
    };
    const std::vector<ParameterSpec>& tensors = table.tensors();
    for (std::size_t i = 0; i < tensors.size(); ++i) {
        const std::int64_t rows = int(i) == table.token_table() ? table.config().vocabulary
                                  : int(i) == table.position_table() ? std::min(seq_len, tensors[i].rows)
                                                                     : tensors[i].rows;
        mark(tensors[i].offset, rows * tensors[i].columns, true);
    }
    const std::int64_t channels = table.config().channels;
    for (int layer = 0; layer < table.config().layers; ++layer)
        mark(tensors[std::size_t(table.block(layer).qkv.bias)].offset + channels, channels, false);
    return bits;
}

class OuterSteps final : public Optimizer {
public:
    OuterSteps(std::unique_ptr<Optimizer> inner, const Model& model, GradientExchange& gradients,
               const OptimizerSettings& settings, Context& context)
        : context_(context),
          gradients_(gradients),
          settings_(settings),
          inner_(std::move(inner)),
          model_(model),
          anchor_(std::size_t(gradients.buckets().owned_elements())),
          momentum_(outer_.momentum > 0 ? anchor_.size() : 0),
          rows_(kRow * std::size_t(context.world->size())),
          norm_(1),
          host_(2 * (rows_.size() + 1) * sizeof(double)) {
        const Sharding& sharding = gradients.buckets().sharding();
        require((sharding.stage > 0) == (sharding.ranks > 1), "--zero-stage", sharding.stage,
                "1 or 2 with workers of several ranks, otherwise 0");
        std::vector<kernels::NormTile> tiles;
        for (const OwnedShard& shard : gradients.buckets().owned()) {
            const std::int64_t first = std::ssize(tiles);
            kernels::append_tiles(tiles, 0, shard.flat.size);
            shards_.push_back({shard, {first, std::ssize(tiles) - first}});
        }
        std::vector<std::uint32_t> changing;
        std::vector<std::int32_t> verdicts;
        const device::SyncIfThrown guard(context.stream);
        tiles_ = {tiles, context.stream};
        of_shards_ = {tiles.size(), context.stream};
        momentum_.zero(context.stream);
        rows_.zero(context.stream);
        if (outer_.bits < 32) {
            changing = changing_elements(model.table(), outer_.seq_len);
            active_ = {changing, context.stream};
            mean_.emplace(model.table(), OnebitRanks{.across = context.across.get()}, outer_mean(outer_), context,
                          sharding);
            mean_->set_active(changing);
            of_mean_ = {mean_->tiles(), context.stream};
        }
        if (sharding.ranks > 1) {
            of_worker_ = {kRow * std::size_t(sharding.ranks), context.stream};
            verdicts.assign(kVerdict * std::size_t(sharding.ranks), 1);
            verdicts_ = {verdicts, context.stream};
            of_worker_.partial.zero(context.stream);
        }
        context.stream.sync();
        if (outer_.start_step == 0) begin_local(0);
    }
    ~OuterSteps() override {
        try {
            context_.across->sync(last_across_);
            context_.worker->sync(last_within_);
            context_.world->sync(last_);
        } catch (...) {  // the next use of the communicator throws it again
        }
    }

    void update(Model& model, std::span<kernels::StepScalars> scalars, const Rates& rates) override {
        phase_ = is_local() ? "local" : inner_->phase();
        inner_->update(model, scalars, rates);
        ++steps_;
        if (!is_local()) {
            if (steps_ == outer_.start_step) begin_local(steps_);
            return;
        }
        counts_.rate_sum += double(rates.learning_rate);
        if (steps_ - counts_.round_began < outer_.every && steps_ != outer_.last_step) return;
        if (model.dtype() == kernels::DType::bf16) outer_step<kernels::bf16>(model, scalars);
        else outer_step<float>(model, scalars);
    }
    void enqueued(const OptimizerStep& step) override { inner_->enqueued(step); }
    void restored() override { inner_->restored(); }
    const char* phase() const override { return phase_; }
    const char* phase_begins() const override { return is_local() ? "" : inner_->phase_begins(); }
    bool is_local() const override { return counts_.local_after >= 0; }
    std::span<const float> weights_to_save() const override {
        return is_local() && steps_ != counts_.round_began ? anchor_.span() : std::span<const float>();
    }

    std::vector<StateFile> state() const override {
        std::vector<StateFile> files = inner_->state();
        if (!is_local()) return files;
        for (StateFile& file : files) {
            file.by = StateFile::By::all;
            file.workers = workers();
        }
        const bool divided = context_.worker->size() > 1;
        const std::vector<ParameterSpec>& parameters = model_.table().tensors();
        if (momentum_.size() > 0) {
            std::vector<StateShard> momentum;
            for (const Shard& shard : shards_)
                momentum.push_back({shard.flat.first, stored(shard).of(momentum_.span())});
            files.push_back({.name = "outer", .by = StateFile::By::first_worker, .optional = true,
                             .quantities = {{.name = "outer_momentum",
                                             .tensors = by_parameter(parameters, momentum)}}});
        }
        if (mean_ && !mean_->worker_errors().empty())
            files.push_back({.name = "outer_errors", .by = StateFile::By::all, .optional = true,
                             .quantities = {{.name = "worker_error",
                                             .tensors = by_parameter(parameters, mean_->worker_errors()),
                                             .of_each_rank = true},
                                            {.name = "server_error",
                                             .tensors = by_parameter(parameters, mean_->server_errors())}},
                             .marks = {{"layout", "--outer-bits " + std::to_string(outer_.bits),
                                        StateFile::Otherwise::starts_at_0},
                                       {"divided", divided ? std::to_string(workers()) : "",
                                        StateFile::Otherwise::resharded}}});
        if (!in_round()) return files;
        std::vector<StateShard> weights;
        for (const Shard& shard : shards_) weights.push_back({shard.flat.first, master(model_, shard)});
        files.push_back({.name = kOuterWorker, .by = StateFile::By::all, .workers = workers(),
                         .quantities = {{.name = "weight", .tensors = by_parameter(parameters, weights)}}});
        return files;
    }

    JsonValue counts() const override {
        return JsonValue({{"local_after", counts_.local_after}, {"round_began", counts_.round_began},
                          {"rounds", counts_.rounds}, {"skipped_in_a_row", counts_.skipped_in_a_row},
                          {"rate_sum", counts_.rate_sum}, {"inner", inner_->counts()}});
    }
    // A checkpoint of a run without outer steps has the counters of the inner optimizer only.
    void restore(const JsonValue& counts, std::int64_t updates, std::int64_t skipped) override {
        steps_ = updates + skipped;
        const bool of_outer = counts->is_object() && counts->contains("inner");
        inner_->restore(of_outer ? JsonValue(counts->at("inner")) : counts, updates, skipped);
        const OuterCounts before = outer_counts(counts, steps_, "outer steps");
        if (before.local_after >= 0) {
            begin_local(before.local_after);
            counts_ = before;
        } else if (steps_ >= outer_.start_step) {
            begin_local(steps_);
        }
    }

    std::optional<OuterRound> round_after(std::int64_t steps) override {
        for (Copy& copy : copies_) {
            if (copy.round.steps != steps) continue;
            copy.done.sync();
            OuterRound round = copy.round;
            copy.round.steps = -1;
            const double* const values = host(copy);
            const double workers = this->workers(), squared = values[rows_.size()];
            const std::size_t of_worker = rows_.size() / std::size_t(workers);
            double all = 0;
            for (std::size_t worker = 0; worker < rows_.size(); worker += of_worker) {
                double change = 0;
                for (std::size_t row = worker; row < worker + of_worker; row += kRow) change += values[row + kChange];
                all += change;
                round.change += std::sqrt(change) / workers;
                round.loss += values[worker + kLoss] / workers;
            }
            round.mean_change = std::sqrt(squared);
            round.skipped = !std::isfinite(squared);
            round.cosine = workers > 1 && !mean_ ? (workers * squared / (all / workers) - 1) / (workers - 1) : NAN;
            counts_.skipped_in_a_row = round.skipped_in_a_row = round.skipped ? counts_.skipped_in_a_row + 1 : 0;
            return round;
        }
        return {};
    }

private:
    struct Shard : OwnedShard {
        ElementRange tiles;  // of tiles_
    };
    // Of the results of an outer step, read by round_after().
    struct Copy {
        std::size_t slot;
        OuterRound round{.steps = -1};
        device::Event done{};
    };

    std::span<float> master(const Model& model, const Shard& shard) const {
        return (model.master_weights_are_flat() ? shard.flat : shard.owned).of(model.master_weights());
    }
    double* host(const Copy& copy) const {
        return reinterpret_cast<double*>(host_.data()) + copy.slot * (rows_.size() + 1);
    }
    std::span<double> row() const { return rows_.span().subspan(kRow * std::size_t(context_.world->rank()), kRow); }
    int workers() const { return context_.world->size() / context_.worker->size(); }
    // Of a shard, in anchor and momentum: of the worker's only rank flat, else of what this one owns.
    const ElementRange& stored(const OwnedShard& shard) const {
        return context_.worker->size() == 1 ? shard.flat : shard.owned;
    }

    // From the next step on workers make local steps; the weights are the first anchor.
    void begin_local(std::int64_t steps) {
        gradients_.leave_world();
        counts_ = {.local_after = steps, .round_began = steps};
        model_.wait_for_parameters();
        for (const Shard& shard : shards_) {
            const std::span<float> from = master(model_, shard);
            device::copy_on_device(stored(shard).of(anchor_.span()).data(), from.data(), from.size_bytes(),
                                   context_.stream);
        }
    }

    std::span<const kernels::NormTile> tiles_of(const Shard& shard) const { return shard.tiles.of(tiles_.span()); }
    std::span<float> momentum_of(const ElementRange& stored) const {
        return momentum_.size() > 0 ? stored.of(momentum_.span()) : std::span<float>();
    }
    // The total of the partial sums of the mean's squared change over all ranks of the worker.
    void add_up_norm(const PartialSums& of_rank) {
        Communicator& within = *context_.worker;
        if (within.size() == 1) return of_rank.add_up(norm_.span(), context_.stream);
        const std::span<double> all = of_worker_.partial.span(),
                                mine = all.subspan(kRow * std::size_t(within.rank()), kRow);
        of_rank.add_up(mine.subspan(kMean, 1), context_.stream);
        within.group_begin(context_.stream);
        within.all_gather<std::byte>(std::as_writable_bytes(all), std::as_bytes(mine));
        within.wait(context_.stream, last_within_ = within.group_end());
        of_worker_.add_up(norm_.span(), context_.stream);
    }
    // A scale that is not finite is in the messages of one rank of a worker, and ends the outer step of all.
    void agree() {
        Communicator& within = *context_.worker;
        if (within.size() == 1) return;
        const std::span<std::int32_t> all = verdicts_.span(),
                                      mine = all.subspan(kVerdict * std::size_t(within.rank()), kVerdict);
        device::copy_on_device(mine.data(), mean_->finite().data(), sizeof(std::int32_t), context_.stream);
        within.group_begin(context_.stream);
        within.all_gather<std::byte>(std::as_writable_bytes(all), std::as_bytes(mine));
        within.wait(context_.stream, last_within_ = within.group_end());
        kernels::onebit_agree({.verdicts = all, .finite = mean_->finite()}, context_.stream);
    }

    template <class T> void outer_step(Model& model, std::span<const kernels::StepScalars> scalars) {
        const device::Range range("outer step");
        const device::StreamRef stream = context_.stream;
        Communicator &all = *context_.world, &across = *context_.across;
        // The update has used the gradients. Gaps between tensors stay 0; the next backward pass overwrites the rest.
        const std::span<float> values = gradients_.reduced();
        const float rate_sum = mean_ ? float(counts_.rate_sum) : 0;
        if (mean_ && rate_sum == 0) {  // no step has changed anything
            counts_.round_began = steps_;
            return;
        }
        model.wait_for_parameters();
        for (const Shard& shard : shards_)
            kernels::outer_change({.values = gradients_.reduced(shard), .master = master(model, shard),
                                   .anchor = stored(shard).of(anchor_.span()), .tiles = tiles_of(shard),
                                   .partial = of_shards_.of(shard.tiles), .rate_sum = rate_sum,
                                   .active = mean_ ? ElementRange{shard.flat.first / 32, ceil_div(shard.flat.size, 32)}
                                                         .of(active_.span()) : std::span<const std::uint32_t>()},
                                  stream);
        of_shards_.add_up(row().subspan(kChange, 1), stream);
        device::copy_on_device(&row()[kLoss], &scalars[0].loss, sizeof(double), stream);
        const std::int64_t sent = across.bytes_sent();
        all.group_begin(stream);
        all.all_gather<std::byte>(std::as_writable_bytes(rows_.span()), std::as_bytes(row()));
        last_ = all.group_end();
        if (!mean_) {
            across.group_begin(stream);
            if (context_.worker->size() == 1) across.all_reduce<float>(values);
            else
                for (const Shard& shard : shards_) across.all_reduce<float>(gradients_.reduced(shard));
            across.wait(stream, last_across_ = across.group_end());
        }
        all.wait(stream, last_);
        if (mean_) apply_mean<T>(model, values, rate_sum, scalars);
        else apply_sums<T>(model, scalars);
        counts_.round_began = steps_;
        counts_.rate_sum = 0;
        Copy& copy = copies_[++counts_.rounds % 2];
        copy.round = {.steps = steps_, .round = counts_.rounds, .bytes_sent = across.bytes_sent() - sent};
        device::copy_to_host(host(copy), rows_.span().data(), rows_.span().size_bytes(), stream);
        device::copy_to_host(host(copy) + rows_.size(), norm_.span().data(), sizeof(double), stream);
        copy.done.record(stream);
    }

    // The outer step in fp32, from the sums of all workers' weights.
    template <class T> void apply_sums(Model& model, std::span<const kernels::StepScalars> scalars) {
        const device::StreamRef stream = context_.stream;
        for (const Shard& shard : shards_)
            kernels::outer_mean({.sums = gradients_.reduced(shard), .anchor = stored(shard).of(anchor_.span()),
                                 .tiles = tiles_of(shard), .partial = of_shards_.of(shard.tiles),
                                 .workers = workers()}, stream);
        add_up_norm(of_shards_);
        update_shards<T>(model, gradients_.buckets(), context_,
                         [&](const OwnedShard& shard, std::span<T> parameter, std::span<float> master) {
            const ElementRange stored = this->stored(shard);
            kernels::outer_update<T>({.parameter = parameter, .master = master, .anchor = stored.of(anchor_.span()),
                                      .momentum = momentum_of(stored), .sums = gradients_.reduced(shard),
                                      .norm = norm_.span(), .scalars = scalars, .workers = workers(),
                                      .learning_rate = float(outer_.learning_rate),
                                      .mu = float(outer_.momentum),
                                      .rounding = rounding_of(settings_, shard.flat.first)},
                                     stream);
        });
    }

    // The same with a mean of few bits per element, in `values` the change of this worker divided by `rate_sum`. The
    // anchor moves first, and the weights follow it: in bf16 they may lie in another order.
    template <class T>
    void apply_mean(Model& model, std::span<float> values, float rate_sum,
                    std::span<const kernels::StepScalars> scalars) {
        const device::StreamRef stream = context_.stream;
        mean_->admit();
        mean_->exchange({.values = values});
        agree();
        std::int64_t tile = 0;
        for (const OnebitMean::Bucket& bucket : mean_->buckets()) {
            const ElementRange stored = bucket.owned;
            const auto tiles = std::ssize(bucket.tiles.span());
            const bool errors = !bucket.error.empty();
            kernels::outer_apply(
                {.layout = bucket.layout, .tiles = bucket.tiles.span(), .replies = bucket.replies,
                 .compensated = errors ? mean_->values_of(bucket, values) : std::span<float>(), .error = bucket.error,
                 .messages = errors ? bucket.messages : std::span<std::uint32_t>(), .active = bucket.active,
                 .one = mean_->one_scale(),
                 .anchor = stored.of(anchor_.span()), .momentum = momentum_of(stored),
                 .partial = of_mean_.of({tile, tiles}), .finite = mean_->finite(),
                 .rate_sum = rate_sum, .learning_rate = float(outer_.learning_rate),
                 .mu = float(outer_.momentum)}, stream);
            tile += tiles;
        }
        mean_->commit();
        add_up_norm(of_mean_);
        update_shards<T>(model, gradients_.buckets(), context_,
                         [&](const OwnedShard& shard, std::span<T> parameter, std::span<float> master) {
            const std::span<float> from = stored(shard).of(anchor_.span());
            device::copy_on_device(master.data(), from.data(), from.size_bytes(), stream);
            if constexpr (!std::is_same_v<T, float>)
                kernels::round_parameters({.parameter = parameter, .master = master, .scalars = scalars,
                                           .rounding = rounding_of(settings_, shard.flat.first)}, stream);
        });
    }

    Context& context_;
    GradientExchange& gradients_;
    const OptimizerSettings settings_;
    const OuterSettings& outer_ = settings_.outer;
    const std::unique_ptr<Optimizer> inner_;
    const Model& model_;
    std::vector<Shard> shards_;
    device::Array<float> anchor_, momentum_;
    device::Array<kernels::NormTile> tiles_;
    device::Array<double> rows_, norm_;
    std::optional<OnebitMean> mean_;         // with fewer bits than 32
    device::Array<std::uint32_t> active_{};  // the elements that it averages
    PartialSums of_shards_{}, of_mean_{};    // by tiles_, and by the tiles of the mean's buckets
    PartialSums of_worker_{};                // rows of the worker's ranks, if it has several
    device::Array<std::int32_t> verdicts_{};
    device::PinnedMemory host_;  // two slots: rows of the workers, then the squared norm of the mean change
    Copy copies_[2]{{.slot = 0}, {.slot = 1}};
    OuterCounts counts_{};
    std::int64_t steps_ = 0;
    const char* phase_ = "";
    CommEvent last_{}, last_across_{}, last_within_{};
};

}  // namespace

std::unique_ptr<Optimizer> make_outer_steps(std::unique_ptr<Optimizer> inner, const Model& model,
                                            GradientExchange& gradients, const OptimizerSettings& settings,
                                            Context& context) {
    return std::make_unique<OuterSteps>(std::move(inner), model, gradients, settings, context);
}

OuterCounts outer_counts(const JsonValue& counts, std::int64_t steps, const std::string& where) {
    if (!counts->is_object() || !counts->contains("local_after")) return {};
    const auto count = [&](const char* name, std::int64_t least) {
        const nlohmann::json value = counts->value(name, nlohmann::json());
        require(value.is_number_integer() && value >= least && value <= steps, where + ": " + name, excerpt(value),
                std::to_string(least) + " to " + std::to_string(steps), "restore the file from a copy");
        return value.get<std::int64_t>();
    };
    const std::int64_t local_after = count("local_after", -1);
    const nlohmann::json rates = counts->value("rate_sum", nlohmann::json(0.0));
    require(rates.is_number() && rates >= 0 && std::isfinite(rates.get<double>()), where + ": rate_sum",
            excerpt(rates), "finite, 0 or more", "restore the file from a copy");
    return {.local_after = local_after, .round_began = count("round_began", std::max<std::int64_t>(local_after, 0)),
            .rounds = count("rounds", 0), .skipped_in_a_row = int(count("skipped_in_a_row", 0)),
            .rate_sum = rates.get<double>()};
}

}  // namespace llmc
