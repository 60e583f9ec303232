// outer_steps.cpp - rounds of steps that workers make alone, and the outer step between them
#include "llmc/model/outer_steps.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "kernels/base/error.h"
#include "kernels/device/range.h"
#include "kernels/outer.h"
#include "llmc/base/json_text.h"
#include "llmc/model/context.h"

namespace llmc {
namespace {

constexpr std::size_t kRow = 32;  // doubles of a worker's row: 256 bytes, as an all-gather of equal shards requires
enum InRow : std::size_t { kChange, kLoss };  // its squared change in the round; the loss of its last step

class OuterSteps final : public Optimizer {
public:
    OuterSteps(std::unique_ptr<Optimizer> inner, const Model& model, GradientExchange& gradients,
               const OptimizerSettings& settings, Context& context)
        : context_(context),
          gradients_(gradients),
          settings_(settings),
          outer_(settings.outer),
          inner_(std::move(inner)),
          model_(model),
          anchor_(std::size_t(model.table().elements())),
          momentum_(outer_.momentum > 0 ? anchor_.size() : 0),
          rows_(kRow * std::size_t(context.world->size())),
          norm_(1),
          host_(2 * (rows_.size() + 1) * sizeof(double)) {
        require(gradients.buckets().sharding().ranks == 1, "the number of ranks of a worker",
                gradients.buckets().sharding().ranks, "1");
        std::vector<kernels::NormTile> tiles;
        for (const OwnedShard& shard : gradients.buckets().owned()) {
            const std::int64_t first = std::ssize(tiles);
            kernels::append_tiles(tiles, 0, shard.flat.size);
            pieces_.push_back({shard.flat, shard.owned, {first, std::ssize(tiles) - first}});
        }
        const std::vector<std::int32_t> all{0, std::int32_t(tiles.size())};
        const device::SyncIfThrown guard(context.stream);
        tiles_ = {tiles, context.stream};
        all_tiles_ = {all, context.stream};
        partial_ = device::Array<double>(tiles.size());
        momentum_.zero(context.stream);
        rows_.zero(context.stream);
        context.stream.sync();
        if (outer_.start_step == 0) part(0);
    }
    ~OuterSteps() override {
        try {
            context_.world->sync(last_);
        } catch (...) {  // the next use of the communicator throws it again
        }
    }

    void update(Model& model, std::span<kernels::StepScalars> scalars, float beta2) override {
        phase_ = together() ? inner_->phase() : "apart";
        inner_->update(model, scalars, beta2);
        ++steps_;
        if (together()) {
            if (steps_ == outer_.start_step) part(steps_);
        } else if (steps_ - counts_.round_began >= outer_.every || steps_ == outer_.last_step) {
            if (model.dtype() == kernels::DType::bf16) meet<kernels::bf16>(model, scalars);
            else meet<float>(model, scalars);
        }
    }
    void enqueued(const OptimizerStep& step) override { inner_->enqueued(step); }
    void restored() override { inner_->restored(); }
    const char* phase() const override { return phase_; }
    bool is_apart() const override { return !together(); }
    bool in_round() const override { return !together() && steps_ != counts_.round_began; }
    std::span<const float> weights_to_save() const override {
        return in_round() ? anchor_.span() : std::span<const float>();
    }

    std::vector<StateFile> state() const override {
        std::vector<StateFile> files = inner_->state();
        if (together()) return files;
        for (StateFile& file : files) file.every_rank = file.each_rank = true;
        if (momentum_.size() > 0)
            files.push_back({.name = "outer", .optional = true,
                             .tensors = {{.name = "outer_momentum", .shards = {{0, momentum_.span()}},
                                          .whole = true}}});
        if (!in_round()) return files;
        StateTensor weights{.name = "weights", .shards = {}};
        for (const Piece& piece : pieces_) weights.shards.push_back({piece.flat.first, master(model_, piece)});
        files.push_back({.name = kOuterWorker, .every_rank = true, .each_rank = true, .tensors = {weights}});
        return files;
    }

    JsonValue counts() const override {
        return JsonValue({{"apart_after", counts_.apart_after}, {"round_began", counts_.round_began},
                          {"rounds", counts_.rounds}, {"skipped_in_a_row", counts_.skipped_in_a_row},
                          {"inner", inner_->counts()}});
    }
    // A checkpoint of steps that all ranks made together has the counters of the inner optimizer only.
    void restore(const JsonValue& counts, std::int64_t updates, std::int64_t skipped) override {
        steps_ = updates + skipped;
        const bool of_outer = counts->is_object() && counts->contains("inner");
        inner_->restore(of_outer ? JsonValue(counts->at("inner")) : counts, updates, skipped);
        const OuterCounts before = outer_counts(counts, steps_, "outer steps");
        if (before.apart_after >= 0) {
            part(before.apart_after);
            counts_ = before;
        } else if (steps_ >= outer_.start_step) {
            part(steps_);
        }
    }

    std::optional<OuterRound> round_after(std::int64_t steps) override {
        for (Copy& copy : copies_) {
            if (copy.round.steps != steps) continue;
            copy.done.sync();
            OuterRound round = copy.round;
            copy.round.steps = -1;
            const double* const values = host(copy);
            const double workers = double(context_.world->size()), squared = values[rows_.size()];
            double all = 0;
            for (std::size_t row = 0; row < rows_.size(); row += kRow) {
                all += values[row + kChange];
                round.change += std::sqrt(values[row + kChange]) / workers;
                round.loss += values[row + kLoss] / workers;
            }
            round.mean_change = std::sqrt(squared);
            round.skipped = !std::isfinite(squared);
            round.cosine = workers > 1 ? (workers * squared / (all / workers) - 1) / (workers - 1) : NAN;
            counts_.skipped_in_a_row = round.skipped_in_a_row = round.skipped ? counts_.skipped_in_a_row + 1 : 0;
            return round;
        }
        return {};
    }

private:
    struct Piece {
        ElementRange flat, owned, tiles;  // in the flat array; in the master weights, unless they are flat; of tiles_
    };
    // Of the results of an outer step, read by round_after().
    struct Copy {
        std::size_t slot;
        OuterRound round{.steps = -1};
        device::Event done{};
    };

    bool together() const { return counts_.apart_after < 0; }
    std::span<float> master(const Model& model, const Piece& piece) const {
        return (model.master_weights_are_flat() ? piece.flat : piece.owned).of(model.master_weights());
    }
    double* host(const Copy& copy) const {
        return reinterpret_cast<double*>(host_.data()) + copy.slot * (rows_.size() + 1);
    }
    std::span<double> row() const { return rows_.span().subspan(kRow * std::size_t(context_.world->rank()), kRow); }

    // Workers train alone from here: the weights are the anchor.
    void part(std::int64_t steps) {
        gradients_.leave_world();
        counts_ = {.apart_after = steps, .round_began = steps};
        for (const Piece& piece : pieces_) {
            const std::span<float> from = master(model_, piece);
            device::copy_on_device(piece.flat.of(anchor_.span()).data(), from.data(), from.size_bytes(),
                                   context_.stream);
        }
    }

    template <class T> void meet(Model& model, std::span<const kernels::StepScalars> scalars) {
        const device::Range range("outer step");
        const device::StreamRef stream = context_.stream;
        Communicator& all = *context_.world;
        const std::span<float> sums = gradients_.reduced();  // the update has used the gradient
        const auto of = [&](const ElementRange& tiles) { return tiles.of(tiles_.span()); };
        const auto add_up = [&](std::span<double> to) {
            kernels::module_sums({.sums = to, .partial = partial_.span(), .module_start = all_tiles_.span()}, stream);
        };
        for (const Piece& piece : pieces_)
            kernels::outer_change({.values = piece.flat.of(sums), .master = master(model, piece),
                                   .anchor = piece.flat.of(anchor_.span()), .tiles = of(piece.tiles),
                                   .partial = piece.tiles.of(partial_.span())}, stream);
        add_up(row().subspan(kChange, 1));
        device::copy_on_device(&row()[kLoss], &scalars[0].loss, sizeof(double), stream);
        const std::int64_t sent = all.bytes_sent();
        all.group_begin(stream);
        all.all_reduce<float>(sums);
        all.all_gather<std::byte>(std::as_writable_bytes(rows_.span()), std::as_bytes(row()));
        all.wait(stream, last_ = all.group_end());
        for (const Piece& piece : pieces_)
            kernels::outer_mean({.sums = piece.flat.of(sums), .anchor = piece.flat.of(anchor_.span()),
                                 .tiles = of(piece.tiles), .partial = piece.tiles.of(partial_.span()),
                                 .workers = all.size()}, stream);
        add_up(norm_.span());
        for (const Piece& piece : pieces_)
            kernels::outer_update<T>({.parameter = piece.flat.of(model.parameters<T>()), .master = master(model, piece),
                                      .anchor = piece.flat.of(anchor_.span()),
                                      .momentum = momentum_.size() > 0 ? piece.flat.of(momentum_.span())
                                                                       : std::span<float>(),
                                      .sums = piece.flat.of(sums), .norm = norm_.span(), .scalars = scalars,
                                      .workers = all.size(), .learning_rate = outer_.learning_rate,
                                      .mu = outer_.momentum, .rounding = rounding_of(settings_, piece.flat.first)},
                                     stream);
        device::fill_zero(sums.data(), sums.size_bytes(), stream);  // gaps between gradients are 0
        counts_.round_began = steps_;
        Copy& copy = copies_[++counts_.rounds % 2];
        copy.round = {.steps = steps_, .round = counts_.rounds, .bytes_sent = all.bytes_sent() - sent};
        device::copy_to_host(host(copy), rows_.span().data(), rows_.span().size_bytes(), stream);
        device::copy_to_host(host(copy) + rows_.size(), norm_.span().data(), sizeof(double), stream);
        copy.done.record(stream);
    }

    Context& context_;
    GradientExchange& gradients_;
    const OptimizerSettings settings_;
    const OuterSettings outer_;
    const std::unique_ptr<Optimizer> inner_;
    const Model& model_;
    std::vector<Piece> pieces_;
    device::Array<float> anchor_, momentum_;
    device::Array<kernels::NormTile> tiles_;
    device::Array<std::int32_t> all_tiles_;
    device::Array<double> partial_, rows_, norm_;
    device::PinnedMemory host_;  // two slots: rows of the workers, then the squared norm of the mean change
    Copy copies_[2]{{.slot = 0}, {.slot = 1}};
    OuterCounts counts_{};
    std::int64_t steps_ = 0;
    const char* phase_ = "";
    CommEvent last_{};
};

}  // namespace

std::unique_ptr<Optimizer> make_outer_steps(std::unique_ptr<Optimizer> inner, const Model& model,
                                            GradientExchange& gradients, const OptimizerSettings& settings,
                                            Context& context) {
    return std::make_unique<OuterSteps>(std::move(inner), model, gradients, settings, context);
}

OuterCounts outer_counts(const JsonValue& counts, std::int64_t steps, const std::string& where) {
    if (!counts->is_object() || !counts->contains("apart_after")) return {};
    const auto count = [&](const char* name, std::int64_t least) {
        const nlohmann::json value = counts->value(name, nlohmann::json());
        require(value.is_number_integer() && value >= least && value <= steps, where + ": " + name, excerpt(value),
                std::to_string(least) + " to " + std::to_string(steps), "restore the file from a copy");
        return value.get<std::int64_t>();
    };
    const std::int64_t apart_after = count("apart_after", -1);
    return {.apart_after = apart_after, .round_began = count("round_began", std::max<std::int64_t>(apart_after, 0)),
            .rounds = count("rounds", 0), .skipped_in_a_row = int(count("skipped_in_a_row", 0))};
}

std::vector<OptimizerBytes> outer_bytes(const OuterSettings& settings, const ParameterTable& table) {
    if (settings.every == 0) return {};
    const std::size_t bytes = std::size_t(table.elements()) * sizeof(float);
    // Within a round a rank copies its weights.
    return {{"outer steps: anchor, fp32", bytes, bytes},
            {"outer steps: momentum, fp32", settings.momentum > 0 ? bytes : 0, settings.momentum > 0 ? bytes : 0}};
}

}  // namespace llmc
