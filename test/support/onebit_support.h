// onebit_support.h - short runs of 1-bit Adam with ranks as threads, and snapshots of a rank's state
#pragma once
#include "llmc/model/onebit_adam.h"
#include "llmc/model/state_files.h"
#include "test/support/rank_support.h"
#include "test/support/scratch_folder.h"

namespace test {

inline constexpr int kWarmup = 3;  // updates before the freeze

inline llmc::OptimizerSettings onebit(llmc::OnebitSettings settings = {.freeze_after = kWarmup}) {
    return {.kind = &llmc::kOnebitAdam, .own = settings};
}
// Sequences shorter than the model's maximum.
inline llmc::ModelSetup short_setup(int ranks) {
    llmc::ModelSetup setup = tiny_setup();
    setup.shape = {12 / ranks, 8};
    return setup;
}
inline GlobalBatch short_batch(unsigned seed) { return random_batch(seed, 12, 8); }

// The state of a rank before, during or after a step.
struct Snapshot {
    std::vector<float> master, first, second, gradient;  // flat
    std::vector<float> moments, errors;                  // as in the files; errors: the worker's, then the server's
    std::vector<llmc::ElementRange> worked, served;
    kernels::StepScalars scalars{};
    llmc::OptimizerCounts counts{};
};
inline std::int64_t frozen_after(const llmc::OptimizerCounts& counts) {
    return llmc::onebit_counts(counts.own, counts.updates, "1-bit Adam").frozen_after;
}
inline Snapshot snapshot(Trainer& trainer) {
    Snapshot now{.master = trainer.master_weights(), .first = trainer.first_moments(),
                 .second = trainer.second_moments(), .gradient = {},
                 .moments = trainer.read_state(trainer.state_file("optimizer")), .errors = {},
                 .scalars = trainer.optimizer().scalars(), .counts = trainer.optimizer().counts()};
    const llmc::StateFile file = trainer.state_file("onebit");
    now.errors = trainer.read_state(file);
    const auto add_to = [](std::vector<llmc::ElementRange>& ranges) {
        return [&](std::int64_t first, std::span<float> values) { ranges.push_back({first, std::ssize(values)}); };
    };
    if (file.quantities.size() == 2) {
        trainer.for_shards(file.quantities[0], add_to(now.worked));
        trainer.for_shards(file.quantities[1], add_to(now.served));
    }
    return now;
}
// Loads weights, counts and moments, and 1-bit Adam's state from files of as many ranks as wrote it. Returns the note
// about that state.
inline std::string load_from(Trainer& trainer, const Snapshot& then, const ScratchFolder& folder, int files,
                             const llmc::Communicator& ranks) {
    std::string note;
    trainer.model().load(then.master);
    trainer.optimizer().load(then.counts, [&](const llmc::StateFile& file) {
        if (file.name == "onebit") {
            note = read_state(file, {.folder = folder.path(), .files = files, .rank = ranks.rank(),
                                     .ranks = ranks.size()},
                              [](std::span<float> to, std::span<const float> values) {
                device::copy_to_device(to.data(), values.data(), values.size_bytes(), nullptr);
                device::sync(nullptr);
            });
            return;
        }
        trainer.write_state(file, then.moments);
    });
    return note;
}

// Runs a step; with local gradients the result has this rank's own gradient, before the exchange.
inline Snapshot step_with_gradient(Trainer& trainer, const GlobalBatch& batch, float loss_factor = 1) {
    trainer.accumulate(batch, 1, loss_factor);
    // While gradients are reduced they belong to the communicator.
    const bool local = trainer.state_file("onebit").quantities.size() == 2;
    const std::vector<float> gradient = local ? trainer.gradients() : std::vector<float>();
    trainer.optimizer().run(trainer.model(), {.learning_rate = 1e-2f, .positions = batch.positions()});
    Snapshot now = snapshot(trainer);
    now.gradient = gradient;
    return now;
}

// Calls use(element, value) for the elements of the ranges, whose values are contiguous.
template <class Use> void for_ranges(const std::vector<llmc::ElementRange>& ranges, const float* values, Use&& use) {
    for (const llmc::ElementRange& range : ranges)
        for (std::int64_t i = range.first; i < range.first + range.size; ++i) use(std::size_t(i), *values++);
}
inline std::int64_t size_of(const std::vector<llmc::ElementRange>& ranges) {
    std::int64_t size = 0;
    for (const llmc::ElementRange& range : ranges) size += range.size;
    return size;
}

// Per element, the mean of the workers' errors and the sum of the servers' errors.
struct Pending {
    std::vector<double> workers, servers;
    std::vector<int> held;  // the number of workers that have the element
};
inline Pending pending_by(const std::vector<Snapshot>& ranks, std::size_t elements, int nodes) {
    Pending all{std::vector<double>(elements), std::vector<double>(elements), std::vector<int>(elements)};
    std::vector<int> served(elements);
    for (const Snapshot& rank : ranks) {
        REQUIRE(std::ssize(rank.errors) == size_of(rank.worked) + size_of(rank.served));
        for_ranges(rank.worked, rank.errors.data(), [&](std::size_t i, float error) {
            all.workers[i] += double(error) / nodes;
            ++all.held[i];
        });
        for_ranges(rank.served, rank.errors.data() + size_of(rank.worked), [&](std::size_t i, float error) {
            all.servers[i] += double(error);
            ++served[i];
        });
    }
    const llmc::ParameterTable table(kTinyModel);
    REQUIRE(std::ranges::count(all.held, nodes) == table.parameters() - table.padding());
    REQUIRE(std::ranges::count(served, 1) == table.parameters() - table.padding());
    return all;
}

inline bool same_parameters(const Snapshot& a, const Snapshot& b) {
    return same_bits(a.master, b.master) && same_bits(a.first, b.first) && same_bits(a.second, b.second);
}

// A run of some steps; its result holds the errors in place of the moments.
inline auto onebit_run(const llmc::OptimizerSettings& adamw, llmc::GradientExchange::Settings exchange = {}) {
    return [=](llmc::Context& context) {
        Trainer trainer(context, short_setup(context.world->size()), adamw, 1, exchange);
        RankResult mine;
        for (unsigned t = 0; t < kWarmup + 4; ++t) mine.scalars.push_back(trainer.step(short_batch(t), 1, 1e-2f));
        mine.parameters = trainer.master_weights();
        mine.moments = snapshot(trainer).errors;
        return mine;
    };
}

}  // namespace test
