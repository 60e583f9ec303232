// onebit_support.h - short runs of 1-bit Adam with ranks as threads, and snapshots of a rank's state
#pragma once
#include "llmc/model/onebit_adam.h"
#include "llmc/model/state_files.h"
#include "test/support/pattern.h"
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

inline std::vector<Snapshot> at(const std::vector<std::vector<Snapshot>>& ranks, std::size_t step) {
    std::vector<Snapshot> now;
    for (const auto& rank : ranks) now.push_back(rank[step]);
    return now;
}

// What the ranks' gradients of step `t` add is applied, or pending in the workers' and servers' errors.
inline void check_conserved(const std::vector<std::vector<Snapshot>>& steps, std::size_t t, int workers,
                            llmc::OnebitSpace space) {
    const Snapshot &before = steps[0][t - 1], &after = steps[0][t];
    const std::size_t elements = before.second.size();
    const auto pending = [&](std::size_t step) {
        if (step < kWarmup) return std::vector<double>(elements);
        Pending all = pending_by(at(steps, step), elements, workers);
        for (std::size_t i = 0; i < elements; ++i) all.workers[i] += all.servers[i];
        return all.workers;
    };
    const auto then = pending(t - 1), now = pending(t);
    double lost = 0, length = 0;
    for (std::size_t i = 0; i < elements; ++i) {
        if (before.second[i] == 0) continue;
        const double unit = space == llmc::OnebitSpace::update ? std::sqrt(double(before.second[i])) + 1e-8 : 1;
        double sum = 0;
        for (const auto& rank : steps) sum += double(rank[t].gradient[i]);
        const double x = (0.9 * double(before.first[i]) + 0.1 * sum * double(after.scalars.grad_scale)) / unit;
        const double difference = double(after.first[i]) / unit + now[i] - then[i] - x;
        lost += difference * difference;
        length += x * x;
    }
    CAPTURE(t, std::sqrt(lost / length));
    CHECK(lost < 1e-10 * length);
}

inline bool same_parameters(const Snapshot& a, const Snapshot& b) {
    return same_bits(a.master, b.master) && same_bits(a.first, b.first) && same_bits(a.second, b.second);
}

// Runs 1-bit Adam until one step is compressed, and AdamW for as many steps, on `ranks` ranks: tensors that
// `settings.exclude` matches, some but not all, are bit-identical to AdamW's and have no errors; the others differ, and
// are identical on all ranks.
inline void check_excluded(int ranks, const llmc::OnebitSettings& settings, bool reduce_in_bf16,
                           const llmc::LocalSettings& local = {}) {
    const auto run = [&](llmc::OptimizerSettings adamw) {
        adamw.max_grad_norm = 0;  // AdamW's norm is exact, 1-bit Adam's is an estimate
        return on_ranks<Snapshot>(ranks, [&](llmc::Context& context) {
            Trainer trainer(context, short_setup(ranks), adamw, 1, {.reduce_in_bf16 = reduce_in_bf16});
            for (unsigned t = 0; t < kWarmup + 1; ++t) trainer.step(short_batch(t), 1, 1e-2f);
            return snapshot(trainer);
        }, local);
    };
    const auto want = run({}), got = run(onebit(settings));
    const llmc::ParameterTable table(kTinyModel);
    const Pattern expression(settings.exclude);
    int excluded_tensors = 0;
    for (const llmc::ParameterSpec& spec : table.tensors()) {
        const auto of = [&](const std::vector<float>& flat) {
            return std::span(flat).subspan(std::size_t(spec.offset), std::size_t(spec.size()));
        };
        const bool excluded = expression.in(spec.name);
        excluded_tensors += excluded;
        for (std::size_t rank = 0; rank < got.size(); ++rank) {
            CAPTURE(spec.name, rank);
            CHECK(same_bits(of(got[rank].master), of(got[0].master)));
            CHECK(same_bits(of(got[rank].master), of(want[rank].master)) == excluded);
            CHECK(same_bits(of(got[rank].first), of(want[rank].first)) == excluded);
            if (!excluded) continue;
            CHECK(same_bits(of(got[rank].second), of(want[rank].second)));
            std::int64_t owed = 0;
            const auto count = [&](std::size_t i, float error) {
                owed += error != 0 && std::int64_t(i) >= spec.offset && std::int64_t(i) < spec.offset + spec.size();
            };
            for_ranges(got[rank].worked, got[rank].errors.data(), count);
            for_ranges(got[rank].served, got[rank].errors.data() + size_of(got[rank].worked), count);
            CHECK(owed == 0);
        }
    }
    CHECK((excluded_tensors > 0 && excluded_tensors < std::ssize(table.tensors())));
}

// The gradient of one rank is not finite in the second compressed step: no rank changes its state, and the next step
// updates again.
inline void check_not_finite(int ranks, int failing, float factor, const llmc::OptimizerSettings& settings,
                             const llmc::LocalSettings& local = {}) {
    const auto all = on_ranks<std::vector<Snapshot>>(ranks, [&](llmc::Context& context) {
        Trainer trainer(context, short_setup(ranks), settings);
        std::vector<Snapshot> steps;
        for (unsigned t = 0; t < kWarmup + 3; ++t) {
            const bool now = t == kWarmup + 1 && context.world->rank() == failing;
            steps.push_back(step_with_gradient(trainer, short_batch(t), now ? factor : 1.0f));
        }
        return steps;
    }, local);
    for (const auto& rank : all) {
        const Snapshot &before = rank[kWarmup], &skipped = rank[kWarmup + 1], &after = rank[kWarmup + 2];
        CHECK(skipped.scalars.skip == kernels::kSkipNonFinite);
        CHECK(same_parameters(skipped, before));
        CHECK(same_bits(skipped.errors, before.errors));
        CHECK(skipped.counts.updates == before.counts.updates);
        CHECK(after.scalars.skip == kernels::kNoSkip);
        CHECK(after.counts.updates == before.counts.updates + 1);
        CHECK(same_parameters(after, all[0][kWarmup + 2]));
    }
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
inline bool same_results(const std::vector<RankResult>& a, const std::vector<RankResult>& b) {
    bool same = a.size() == b.size();
    for (std::size_t rank = 0; same && rank < a.size(); ++rank)
        same = same_bits(a[rank].parameters, b[rank].parameters) && same_bits(a[rank].moments, b[rank].moments) &&
               same_bits(a[rank].scalars, b[rank].scalars);
    return same;
}

// Checks that every order of arrival gives the results that it returns.
template <class Body> std::vector<RankResult> in_any_order(int ranks, const Body& body, int ranks_per_node = 0) {
    const auto want = on_ranks<RankResult>(ranks, body, {.ranks_per_node = ranks_per_node});
    for (llmc::LocalSettings settings :
         {llmc::LocalSettings{.order = llmc::LocalOrder::late}, llmc::LocalSettings{.order = llmc::LocalOrder::early},
          llmc::LocalSettings{.delay = std::chrono::microseconds(200), .seed = 5}}) {
        settings.ranks_per_node = ranks_per_node;
        CHECK(same_results(on_ranks<RankResult>(ranks, body, settings), want));
    }
    return want;
}

}  // namespace test
