// muon.cpp - the batches of matrices of one shape and their update, and what a run reports of them
#include "llmc/model/muon.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "kernels/base/error.h"
#include "kernels/matmul/newton_schulz.h"
#include "kernels/muon.h"
#include "llmc/base/option.h"
#include "llmc/base/value_text.h"
#include "llmc/model/adamw.h"
#include "llmc/model/context.h"

namespace llmc {
namespace {

using kernels::bf16;

constexpr std::int64_t kMuonBatch = std::int64_t(1) << 24;  // elements
constexpr float kMuonScale = 0.2f;

// Matrices of one shape that are orthogonalized together, one after the other in the array of their momentum.
struct MuonBatch {
    int rows, columns;
    std::int64_t first;  // in the array of momentum
    std::vector<std::int64_t> flat{};  // the first element of each, in the flat array
    device::Array<kernels::MuonTile> tiles{};
    device::Array<std::int32_t> tile_start{};  // (matrices + 1)

    int count() const { return int(flat.size()); }
    std::int64_t each() const { return std::int64_t(rows) * columns; }
    std::int64_t elements() const { return count() * each(); }
    std::int64_t gram_elements() const {
        const std::int64_t smaller = std::min(rows, columns);
        return count() * smaller * smaller;
    }
};

std::vector<MuonBatch> batches_of(const GradientBuckets& buckets) {
    std::vector<OwnedShard> owned = buckets.owned();
    std::erase_if(owned, [](const OwnedShard& shard) { return !shard.matrix; });
    std::ranges::sort(owned, {}, [](const OwnedShard& shard) { return shard.owned.first; });
    std::vector<MuonBatch> batches;
    for (const OwnedShard& shard : owned) {
        const BlockMatrix& matrix = buckets.matrices()[std::size_t(*shard.matrix)];
        if (batches.empty() || batches.back().rows != matrix.rows || batches.back().columns != matrix.columns ||
            batches.back().elements() + matrix.size() > kMuonBatch)
            batches.push_back({.rows = matrix.rows, .columns = matrix.columns,
                               .first = shard.owned.first - buckets.elements_outside_matrices()});
        batches.back().flat.push_back(matrix.first);
    }
    return batches;
}

std::int64_t largest(const std::vector<MuonBatch>& batches, std::int64_t (MuonBatch::*elements)() const) {
    std::int64_t most = 0;
    for (const MuonBatch& batch : batches) most = std::max(most, (batch.*elements)());
    return most;
}

std::int64_t momentum_elements(const GradientBuckets& buckets) {
    return buckets.owned_elements() - buckets.elements_outside_matrices();
}

// The working memory of orthogonalizing one batch at a time.
template <class T>
struct MuonWork {
    explicit MuonWork(const std::vector<MuonBatch>& batches)
        : direction(std::size_t(largest(batches, &MuonBatch::elements))),
          other(direction.size()),
          gram(std::size_t(largest(batches, &MuonBatch::gram_elements))),
          polynomial(gram.size()) {}
    std::span<T> orthogonalize(const MuonBatch& batch, std::span<const kernels::NewtonSchulzStep> steps,
                               Context& context) {
        const auto elements = std::size_t(batch.elements()), products = std::size_t(batch.gram_elements());
        return kernels::newton_schulz<T>(
            context.matmul, {.matrices = direction.span().first(elements), .other = other.span().first(elements),
                             .gram = gram.span().first(products), .polynomial = polynomial.span().first(products),
                             .count = batch.count(), .rows = batch.rows, .columns = batch.columns, .steps = steps},
            context.stream);
    }

    device::Array<T> direction, other, gram, polynomial;
};

template <class T>
class Muon final : public Optimizer {
public:
    Muon(const Model& model, GradientExchange& gradients, const OptimizerSettings& settings, Context& context)
        : context_(context),
          parameters_(model.table().tensors()),
          gradients_(gradients),
          settings_(settings),
          muon_(std::any_cast<const MuonSettings&>(settings.own)),
          adamw_(model, gradients, settings, context),
          batches_(batches_of(gradients.buckets())),
          momentum_(std::size_t(momentum_elements(gradients.buckets()))),
          work_(batches_) {
        momentum_.zero(context.stream);
        std::size_t most_tiles = 0, most_matrices = 0;
        for (MuonBatch& batch : batches_) {
            std::vector<kernels::MuonTile> tiles;
            std::vector<std::int32_t> start{0};
            const device::SyncIfThrown guard(context.stream);
            for (int matrix = 0; matrix < batch.count(); ++matrix) {
                kernels::append_muon_tiles(tiles, matrix, matrix * batch.each(), batch.flat[std::size_t(matrix)],
                                           batch.each());
                start.push_back(std::int32_t(tiles.size()));
            }
            batch.tiles = {tiles, context.stream};
            batch.tile_start = {start, context.stream};
            context.stream.sync();  // before the host copies are freed
            most_tiles = std::max(most_tiles, tiles.size());
            most_matrices = std::max(most_matrices, std::size_t(batch.count()));
        }
        partial_ = device::Array<double>(most_tiles);
        squared_norm_ = device::Array<double>(most_matrices);
    }

    void update(Model& model, std::span<kernels::StepScalars> scalars, const Rates& rates) override {
        for (const MuonBatch& batch : batches_) update_batch(batch, model, scalars);
        adamw_.update(model, scalars, rates);  // and the gather of all parameters
    }

    std::vector<StateFile> state() const override {
        std::vector<StateFile> files = adamw_.state();
        std::vector<StateShard> momentum;
        for (const MuonBatch& batch : batches_)
            for (int matrix = 0; matrix < batch.count(); ++matrix)
                momentum.push_back(
                    {batch.flat[std::size_t(matrix)],
                     ElementRange{batch.first + matrix * batch.each(), batch.each()}.of(momentum_.span())});
        files.push_back({.name = "muon", .by = StateFile::By::first_worker,
                         .quantities = {{.name = "momentum", .tensors = by_parameter(parameters_, momentum)}}});
        return files;
    }

private:
    void update_batch(const MuonBatch& batch, Model& model, std::span<const kernels::StepScalars> scalars) {
        const device::StreamRef stream = context_.stream;
        const GradientBuckets& buckets = gradients_.buckets();
        // of an array of what this rank owns
        const auto packed = [&](std::span<float> owned) {
            return ElementRange{buckets.elements_outside_matrices() + batch.first, batch.elements()}.of(owned);
        };
        const bool packed_grad = buckets.sharding().shards_gradients(),
                   packed_master = !model.master_weights_are_flat();
        const std::span<T> direction = work_.direction.span().first(std::size_t(batch.elements()));
        const std::span<double> norms = squared_norm_.span().first(std::size_t(batch.count()));
        const std::span<const kernels::MuonTile> tiles = batch.tiles.span();
        kernels::muon_momentum<T>({.momentum = momentum_.span().subspan(std::size_t(batch.first), direction.size()),
                                   .direction = direction, .partial = partial_.span(),
                                   .grad = packed_grad ? packed(gradients_.reduced()) : gradients_.reduced(),
                                   .tiles = tiles, .scalars = scalars, .mu = float(muon_.momentum),
                                   .packed_grad = packed_grad}, stream);
        kernels::range_sums({.sums = norms, .partial = partial_.span(), .range_start = batch.tile_start.span()},
                             stream);
        kernels::muon_normalize<T>({.direction = direction, .squared_norm = norms, .tiles = tiles}, stream);
        const std::span<T> orthogonal = work_.orthogonalize(batch, kernels::kMuonSteps, context_);
        kernels::muon_update<T>({.parameter = model.parameters<T>(),
                                 .master = packed_master ? packed(model.master_weights()) : model.master_weights(),
                                 .direction = orthogonal,
                                 .scale = kMuonScale * std::sqrt(float(std::max(batch.rows, batch.columns))),
                                 .tiles = tiles, .scalars = scalars,
                                 .learning_rate_factor = float(muon_.learning_rate_factor),
                                 .weight_decay = float(settings_.weight_decay), .rounding = rounding_of(settings_, 0),
                                 .packed_master = packed_master, .cautious = muon_.cautious_decay}, stream);
    }

    Context& context_;
    const std::vector<ParameterSpec>& parameters_;
    GradientExchange& gradients_;
    OptimizerSettings settings_;
    MuonSettings muon_;
    AdamW adamw_;
    std::vector<MuonBatch> batches_;
    device::Array<float> momentum_;
    MuonWork<T> work_;
    device::Array<double> partial_, squared_norm_;
};

std::unique_ptr<Optimizer> make_muon(const Model& model, GradientExchange& gradients,
                                     const OptimizerSettings& settings, Context& context) {
    require(gradients.buckets().sharding().whole_matrices, "the gradients of Muon's matrices", "divided among ranks",
            "one owner for each matrix (Sharding::whole_matrices)");
    if (model.dtype() == kernels::DType::bf16) return std::make_unique<Muon<bf16>>(model, gradients, settings, context);
    return std::make_unique<Muon<float>>(model, gradients, settings, context);
}

// Without the lists of tiles.
std::vector<OptimizerBytes> muon_bytes(const OptimizerSettings& settings, const ParameterTable& table,
                                       const Sharding& sharding, kernels::DType dtype) {
    const GradientBuckets buckets(table, sharding);
    const std::vector<MuonBatch> batches = batches_of(buckets);
    const std::size_t momentum = std::size_t(momentum_elements(buckets)) * sizeof(float);
    const std::int64_t work =
        2 * (largest(batches, &MuonBatch::elements) + largest(batches, &MuonBatch::gram_elements));
    std::vector<OptimizerBytes> all = kAdamW.bytes(settings, table, sharding, dtype);
    all.push_back({"Muon's momentum, fp32", momentum, momentum});
    all.push_back({"Muon's orthogonalization", std::size_t(work) * (dtype == kernels::DType::bf16 ? 2 : 4), 0});
    return all;
}

OptimizerReport muon_report(const OptimizerRun& run) {
    const double share = muon_share(run.table, run.sharding.ranks, double(run.step_tokens));
    return {.lines = "Muon: orthogonalizing adds " + text_of_number(std::round(1000 * share) / 10) +
                     " % to the blocks' matrix products of a step\n",
            .fields = JsonValue(nlohmann::json::object({{"muon_share", share}}))};
}

void muon_flags(OptionList& list, std::any& own) {
    auto& muon = std::any_cast<MuonSettings&>(own);
    list.group("Optimizer");
    list.entry("muon-momentum", muon.momentum, "Muon's momentum of the matrices", Real{0, 0.9999999}, ByRun{});
    list.entry("muon-lr-scale", muon.learning_rate_factor,
               "factor on --lr for Muon's matrices, in their weight decay, too", Real{0, 1e3});
    list.entry("muon-cautious-decay", muon.cautious_decay,
               "no weight decay for elements of Muon's matrices that the update moves away from 0");
}

}  // namespace

constinit const OptimizerKind kMuon{
    .title = "Muon",
    .help = "orthogonalizes the updates of the blocks' weight matrices, which takes time per step, little if a step "
            "has many tokens, and is AdamW for the rest",
    .whole_matrices = true,
    .rate = 5,  // dev/LOG.md, dev/results/2026-11-28-auto.md
    .on_other_model = "a model that AdamW has trained may become worse with --optimizer muon",
    .own = [] { return std::any(MuonSettings{}); },
    .flags = muon_flags,
    .make = make_muon,
    .bytes = muon_bytes,
    .report = muon_report};

double muon_share(const ParameterTable& table, int ranks, double tokens) {
    std::vector<double> work(std::size_t(ranks), 0);
    double elements = 0;
    for (const BlockMatrix& matrix : block_matrices(table, ranks)) {
        work[std::size_t(matrix.owner)] += double(kernels::kMuonSteps.size()) * matrix.cost();
        elements += double(matrix.size());
    }
    return std::ranges::max(work) / (3 * elements * tokens / ranks);
}

}  // namespace llmc
