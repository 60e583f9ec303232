// model_support.h - a tiny GPT-2, global batches with ignored targets, and steps with any number of micro-batches
#pragma once
#include <algorithm>
#include <filesystem>
#include <memory>
#include <numeric>
#include <random>

#include "kernels/device/device.h"
#include "kernels/device/memory.h"
#include "llmc/model/batch_upload.h"
#include "llmc/model/optimizer.h"
#include "llmc/weights/saved_model.h"
#include "test/support/reference_model.h"
#include "test/support/support.h"

namespace test {

inline const llmc::ModelConfig kTinyModel{.layers = 2, .heads = 2, .channels = 32, .max_seq_len = 16, .vocabulary = 61};
inline constexpr int kTinyRows = 16, kTinySeqLen = 16;

// The context of one rank; the communicator must outlive it.
inline llmc::Context make_context(llmc::Communicator& communicator) {
    return {.device = device::open(1), .stream = device::Stream(), .matmul = kernels::Matmul(),
            .world = {std::shared_ptr<void>(), &communicator}};  // non-owning pointer
}
inline llmc::Context make_context() { return {device::open(2), device::Stream(), kernels::Matmul()}; }

inline std::vector<float> initial_weights(const llmc::ParameterTable& table, std::uint64_t seed) {
    std::vector<float> weights(std::size_t(table.elements()), NAN);
    table.initialise(weights, seed);
    return weights;
}

// Weights that differ from their neighbours and round to bf16 up, down and to even; 0 in padding and gaps.
inline std::vector<float> varied_weights(const llmc::ParameterTable& table) {
    std::vector<float> flat(std::size_t(table.elements()));
    for (const auto& spec : table.tensors())
        for (std::int64_t i = spec.offset; i < spec.offset + spec.rows_in_files * spec.columns; ++i)
            flat[std::size_t(i)] = std::ldexp(float(i * 7919 % 65521 - 32760), -20);
    flat[0] = -0.0f, flat[1] = 1e-45f, flat[2] = 3.3e38f;
    flat[3] = 1 + 0x1p-8f, flat[4] = 1 + 3 * 0x1p-8f;  // ties: round to even, down and up
    return flat;
}

// The weights of a saved model, in a table of its size.
inline std::vector<float> weights_in(const std::filesystem::path& model) {
    const llmc::SavedModel saved(model);
    const llmc::ParameterTable table(saved.config());
    std::vector<float> weights(std::size_t(table.elements()), NAN);
    saved.read(table, weights);
    return weights;
}

// Sequences with their targets; kIgnoreTarget where a target is ignored.
struct GlobalBatch {
    int rows, seq_len;
    std::vector<int> tokens, targets;
    std::int64_t valid_targets() const {
        return std::int64_t(targets.size()) - std::count(targets.begin(), targets.end(), kernels::kIgnoreTarget);
    }
    std::int64_t positions() const { return std::int64_t(rows) * seq_len; }
    ReferenceBatch reference() const { return {tokens, targets, rows, seq_len}; }
};

// The reference of rows that consist of documents: each of them alone, in a row of its own.
inline ReferenceGradient reference_of_documents(const llmc::ParameterTable& table, std::span<const double> parameters,
                                                const GlobalBatch& batch, int end_of_text) {
    ReferenceGradient all{.gradient = std::vector<double>(parameters.size())};
    for (int first = 0, last; first < int(batch.tokens.size()); first = last) {
        for (last = first + 1; last % batch.seq_len != 0 && batch.tokens[std::size_t(last)] != end_of_text;) ++last;
        const auto part = [&](std::span<const int> of) {
            return of.subspan(std::size_t(first), std::size_t(last - first));
        };
        const auto alone = reference_gradient(table, parameters, {part(batch.tokens), part(batch.targets), 1,
                                                                  last - first});
        all.loss.sum += alone.loss.sum;
        all.loss.valid_targets += alone.loss.valid_targets;
        for (std::size_t i = 0; i < all.gradient.size(); ++i)
            all.gradient[i] += alone.gradient[i] * double(alone.loss.valid_targets);
    }
    for (double& g : all.gradient) g /= double(all.loss.valid_targets);
    return all;
}

inline GlobalBatch random_batch(unsigned seed, int rows = kTinyRows, int seq_len = kTinySeqLen,
                                int vocabulary = kTinyModel.vocabulary) {
    std::mt19937 engine(seed);
    GlobalBatch batch{rows, seq_len, {}, {}};
    for (int i = 0; i < rows * seq_len; ++i) {
        batch.tokens.push_back(int(engine() % unsigned(vocabulary)));
        batch.targets.push_back(int(engine() % unsigned(vocabulary)));
    }
    return batch;
}

// The rows of a batch, several times.
inline GlobalBatch repeated(const GlobalBatch& batch, int times) {
    GlobalBatch all{times * batch.rows, batch.seq_len, {}, {}};
    for (int i = 0; i < times; ++i) {
        all.tokens.insert(all.tokens.end(), batch.tokens.begin(), batch.tokens.end());
        all.targets.insert(all.targets.end(), batch.targets.begin(), batch.targets.end());
    }
    return all;
}

// Every row keeps each of its targets with a probability of 0, .05, .5 or 1; row 1 has none, the last row has all, and
// rows 4 to 7, a micro-batch of four, have none.
inline GlobalBatch random_batch_with_gaps(unsigned seed) {
    GlobalBatch batch = random_batch(seed);
    std::mt19937 engine(seed + 1000);
    constexpr double kKept[] = {0, 0.05, 0.5, 1};
    for (int row = 0; row < batch.rows; ++row) {
        const double kept = row == 1 || (row >= 4 && row < 8) ? 0 : row == batch.rows - 1 ? 1 : kKept[engine() % 4];
        for (int t = 0; t < batch.seq_len; ++t)
            if (double(engine()) / 4294967296.0 >= kept)
                batch.targets[std::size_t(row * batch.seq_len + t)] = kernels::kIgnoreTarget;
    }
    return batch;
}

// A model with its gradients and its optimizer, used like in the main loop. With several ranks each rank makes one and
// makes the same calls. With outer steps the context's worker is this rank alone.
class Trainer {
public:
    Trainer(llmc::Context& context, llmc::ModelSetup setup, const llmc::OptimizerSettings& settings = {},
            std::uint64_t seed = 1, llmc::GradientExchange::Settings exchange = {})
        : context_(context), rank_(context.world->rank()), ranks_(context.world->size()),
          upload_(setup, context) {
        setup.sharding.rank = rank_;
        setup.sharding.ranks = ranks_;
        setup.sharding.whole_matrices = settings.kind->whole_matrices;
        if (settings.outer.every > 0) {
            if (!setup.sharding.shards_gradients())
                exchange.world = {.rank = rank_, .ranks = ranks_, .whole_matrices = setup.sharding.whole_matrices};
            setup.sharding.rank = context.worker->rank();
            setup.sharding.ranks = context.worker->size();
        }
        exchange.sharding = setup.sharding;
        model_ = llmc::make_model(setup, llmc::ParameterTable(setup.config), context);
        model_->load(initial_weights(model_->table(), seed));
        exchange.may_stay_local = settings.kind->local_gradients;
        gradients_ = llmc::make_gradient_exchange(model_->table(), exchange, context);
        optimizer_ = std::make_unique<llmc::OptimizerStep>(*model_, *gradients_, settings, context);
    }

    // Accumulates the gradients of this rank's part of the global batch in `micro_batches` equal micro-batches, each
    // position with weight loss_factor / positions.
    void accumulate(const GlobalBatch& batch, int micro_batches, float loss_factor = 1) {
        const llmc::MicroBatchShape shape{batch.rows / ranks_ / micro_batches, batch.seq_len};
        for (int micro = 0; micro < micro_batches; ++micro) {
            const auto part = [&](const std::vector<int>& all) {
                return std::span<const int>(all).subspan(std::size_t(rank_ * micro_batches + micro) * shape.rows(),
                                                         shape.rows());
            };
            const auto targets = part(batch.targets);
            const auto ignored = std::count(targets.begin(), targets.end(), kernels::kIgnoreTarget);
            gradients_->begin({.index = micro, .count = micro_batches,
                               .valid_targets = std::int64_t(targets.size()) - ignored});
            model_->forward_backward(upload_.upload(part(batch.tokens), targets, shape, llmc::Purpose::training),
                                     loss_factor * float(1.0 / double(positions_of(batch))), *gradients_);
        }
    }
    kernels::StepScalars step(const GlobalBatch& batch, int micro_batches = 1, float learning_rate = 6e-4f,
                              float loss_factor = 1) {
        accumulate(batch, micro_batches, loss_factor);
        optimizer_->run(*model_, {.learning_rate = learning_rate, .positions = positions_of(batch)});
        return optimizer_->scalars();
    }
    // In this rank's step.
    std::int64_t positions_of(const GlobalBatch& batch) const { return batch.positions() / gradients_->workers(); }
    // Like a resumed run, with Adam moments of 0.
    void load_counts(const llmc::OptimizerCounts& counts) {
        optimizer_->load(counts, [&](const llmc::StateFile& file) {
            write_state(file, std::vector<float>(std::size_t(file.elements())));
        });
    }
    // The values of all quantities, in the order of the file; empty: the optimizer has no such file.
    std::vector<float> read_state(const llmc::StateFile& file) const {
        std::vector<float> values;
        for (const std::span<float> shard : file.values()) {
            const std::vector<float> some = read(shard);
            values.insert(values.end(), some.begin(), some.end());
        }
        return values;
    }
    void write_state(const llmc::StateFile& file, const std::vector<float>& values) {
        const float* from = values.data();
        for (const std::span<float> shard : file.values()) {
            device::copy_to_device(shard.data(), from, shard.size_bytes(), context_.stream);
            from += shard.size();
        }
        context_.stream.sync();
    }
    // Calls use(first element in the flat array, values) for all shards of a quantity.
    template <class Use> void for_shards(const llmc::StateQuantity& quantity, Use&& use) const {
        for (const llmc::StateTensor& tensor : quantity.tensors) {
            const auto spec = std::ranges::find(table().tensors(), tensor.parameter, &llmc::ParameterSpec::name);
            for (const auto& [first, values] : tensor.shards) use(spec->offset + first, values);
        }
    }
    llmc::StateFile state_file(const std::string& name) const {
        for (const llmc::StateFile& file : optimizer_->optimizer().state())
            if (file.name == name) return file;
        return {};
    }
    double loss(const GlobalBatch& batch) {
        loss_sum_.zero(context_.stream);
        const llmc::MicroBatchShape shape{batch.rows, batch.seq_len};
        const auto on_device = upload_.upload(batch.tokens, batch.targets, shape, llmc::Purpose::evaluation);
        model_->evaluate(on_device, loss_sum_.span());
        return loss_sum_.download(context_.stream)[0] / double(batch.valid_targets());
    }

    llmc::Model& model() { return *model_; }
    const llmc::ParameterTable& table() const { return model_->table(); }
    llmc::GradientExchange& exchange() { return *gradients_; }
    const llmc::OptimizerStep& optimizer() const { return *optimizer_; }
    llmc::OptimizerStep& optimizer() { return *optimizer_; }
    // This rank's master weights: all of them, or its shards.
    std::vector<float> master_weights() const {
        model_->wait_for_parameters();
        return read(model_->master_weights());
    }
    std::vector<kernels::bf16> rounded() const {
        model_->wait_for_parameters();
        return read(model_->parameters<kernels::bf16>());
    }
    // All gradients; ZeRO stage 0 only.
    std::vector<float> gradients() const { return read(gradients_->reduced(gradients_->buckets().owned().front())); }
    // As flat arrays, with 0 for what this rank does not own.
    std::vector<float> first_moments() const { return flat(state_file("optimizer").quantities[0]); }
    std::vector<float> second_moments() const { return flat(state_file("optimizer").quantities[1]); }
    std::vector<float> flat(const llmc::StateQuantity& quantity) const {
        std::vector<float> all(std::size_t(table().elements()));
        for_shards(quantity, [&](std::int64_t first, std::span<float> values) {
            std::ranges::copy(read(values), all.begin() + first);
        });
        return all;
    }

    template <class T> std::vector<T> read(std::span<T> device) const {
        std::vector<T> host(device.size());
        device::copy_to_host(host.data(), device.data(), device.size_bytes(), context_.stream);
        context_.stream.sync();
        return host;
    }

private:
    llmc::Context& context_;
    int rank_, ranks_;
    llmc::BatchUpload upload_;
    std::unique_ptr<llmc::Model> model_;
    std::unique_ptr<llmc::GradientExchange> gradients_;
    std::unique_ptr<llmc::OptimizerStep> optimizer_;
    device::Array<double> loss_sum_{1};
};

inline llmc::ModelSetup tiny_setup(kernels::DType dtype = kernels::DType::fp32,
                                   llmc::Recompute recompute = llmc::Recompute::none) {
    return {.config = kTinyModel, .dtype = dtype, .shape = {kTinyRows, kTinySeqLen}, .recompute = recompute};
}

// The gradient of the mean loss, from gradients accumulated with weight 1 / positions.
inline std::vector<double> mean_gradient(const Trainer& trainer, const GlobalBatch& batch) {
    std::vector<double> gradient = widen(trainer.gradients());
    for (double& g : gradient) g *= double(batch.positions()) / double(batch.valid_targets());
    return gradient;
}

// Makes a step, whose loss and gradients must be those of fp64.
inline kernels::StepScalars check_step(Trainer& trainer, const GlobalBatch& batch, int micro_batches,
                                       const ReferenceGradient& want) {
    const kernels::StepScalars scalars = trainer.step(batch, micro_batches);
    CHECK(std::fabs(scalars.loss - want.loss.mean()) <= 1e-6 * want.loss.mean());
    CHECK(largest_error(mean_gradient(trainer, batch), want.gradient) <= 2e-6 * largest_magnitude(want.gradient));
    return scalars;
}

}  // namespace test
