// outer_steps_ranks_test.cpp - local steps of workers, the outer step, and their state in a checkpoint, with ranks as
// threads
#include <cmath>

#include "llmc/model/muon.h"
#include "llmc/model/outer_steps.h"
#include "llmc/model/state_files.h"
#include "test/support/onebit_support.h"

using namespace llmc;
using namespace test;
using kernels::DType;

namespace {

// Plain SGD on the mean gradient, clipped.
class Sgd final : public Optimizer {
public:
    explicit Sgd(GradientExchange& gradients) : gradients_(gradients) {}
    void update(Model& model, std::span<kernels::StepScalars> scalars, const Rates&) override {
        if (scalars[0].skip != kernels::kNoSkip) return;
        const std::span<float> weights = model.master_weights(), gradient = gradients_.reduced();
        for (std::size_t i = 0; i < weights.size(); ++i)
            weights[i] -= scalars[0].learning_rate * (scalars[0].grad_scale * gradient[i]);
    }
    std::vector<StateFile> state() const override { return {}; }

private:
    GradientExchange& gradients_;
};
const OptimizerKind kSgd{.make = [](const Model&, GradientExchange& gradients, const OptimizerSettings&,
                                    Context&) -> std::unique_ptr<Optimizer> {
    return std::make_unique<Sgd>(gradients);
}};

OptimizerSettings settings_of(const OptimizerKind& kind, const OuterSettings& outer) {
    OptimizerSettings settings{.kind = &kind, .outer = outer};
    if (kind.own) settings.own = kind.own();
    return settings;
}
struct Inner {
    const OptimizerKind* kind;
    DType dtype;
};
const std::vector<Inner> kInner{{&kAdamW, DType::fp32}, {&kAdamW, DType::bf16}, {&kMuon, DType::fp32},
                                {&kMuon, DType::bf16}};

ModelSetup setup_of(int ranks, DType dtype = DType::fp32) {
    ModelSetup setup = short_setup(ranks);
    setup.dtype = dtype;
    return setup;
}

// How workers exchange their changes.
struct Exchange {
    int bits;
    bool errors;
    OuterSettings of(OuterSettings outer, int workers) const {
        outer.bits = bits;
        outer.errors = errors;
        outer.workers = workers;
        outer.seq_len = 8;
        return outer;
    }
};
const std::vector<Exchange> kExchanges{{32, false}, {4, false}, {4, true}, {1, true}};

// Weights after each step, and what the outer steps reported.
struct Course {
    std::vector<std::vector<float>> weights{};
    std::vector<kernels::StepScalars> scalars{};
    std::vector<std::optional<OuterRound>> rounds{};
    std::vector<float> momentum{}, errors{};
    OptimizerCounts counts{};
};
using Batches = std::vector<GlobalBatch>;

void make_steps(Trainer& trainer, const Batches& batches, std::size_t from, std::size_t to, Course& course) {
    for (std::size_t t = from; t < to; ++t) {
        course.scalars.push_back(trainer.step(batches[t], 1, 1e-2f));
        course.weights.push_back(trainer.master_weights());
        course.rounds.push_back(trainer.optimizer().round_after(std::int64_t(t) + 1));
    }
    course.momentum = trainer.read_state(trainer.state_file("outer"));
    course.errors = trainer.read_state(trainer.state_file("outer_errors"));
    course.counts = trainer.optimizer().counts();
}

std::vector<Course> run(int ranks, const OptimizerSettings& settings, const Batches& batches,
                        DType dtype = DType::fp32) {
    return on_ranks<Course>(ranks, [&](Context& context) {
        if (settings.outer.every > 0) context.worker = alone();
        Trainer trainer(context, setup_of(ranks, dtype), settings);
        Course course;
        make_steps(trainer, batches, 0, batches.size(), course);
        return course;
    });
}

Batches batches_of(unsigned steps) {
    Batches batches;
    for (unsigned t = 0; t < steps; ++t) batches.push_back(short_batch(t));
    return batches;
}
// Every target is valid.
Batches whole_batches(unsigned steps) {
    Batches batches = batches_of(steps);
    for (GlobalBatch& batch : batches)
        for (std::size_t i = 0; i < batch.targets.size(); ++i) batch.targets[i] = int((7 * i + 3) % 61);
    return batches;
}

}  // namespace

TEST_CASE("one worker with outer steps (1, 0) makes the steps of its optimizer", "[outer][ranks]") {
    const Inner inner = GENERATE(from_range(kInner));
    const std::int64_t every = GENERATE(1, 3);
    Batches batches = batches_of(5);
    std::ranges::fill(batches[3].targets, kernels::kIgnoreTarget);  // a skipped step
    const auto outer = run(1, settings_of(*inner.kind, {.every = every, .learning_rate = 1, .momentum = 0}), batches,
                           inner.dtype),
               plain = run(1, settings_of(*inner.kind, {}), batches, inner.dtype);
    CAPTURE(inner.kind->title, int(inner.dtype), every);
    CHECK(outer[0].weights == plain[0].weights);
    CHECK(outer[0].scalars[3].skip == kernels::kSkipNoTargets);
    CHECK(same_bits(outer[0].scalars, plain[0].scalars));
}

TEST_CASE("an outer step (1, 0) after every step of SGD is data parallelism", "[outer][ranks]") {
    if (!device::memory_is_host_memory()) return;  // Sgd
    const Batches batches = whole_batches(6);
    OptimizerSettings outer = settings_of(kSgd, {.every = 1, .learning_rate = 1, .momentum = 0}),
                      plain = settings_of(kSgd, {});
    outer.max_grad_norm = plain.max_grad_norm = 0;
    const auto workers = run(3, outer, batches), ranks = run(3, plain, batches);
    for (std::size_t t = 0; t < batches.size(); ++t)
        for (std::size_t i = 0; i < ranks[0].weights[t].size(); ++i)
            if (!(std::fabs(workers[1].weights[t][i] - ranks[1].weights[t][i]) < 1e-6)) FAIL("weight " << i);
    CHECK(workers[0].weights.back() != workers[0].weights.front());
}

TEST_CASE("before --outer-start-step ranks train together, with the same bits", "[outer][ranks]") {
    const Inner inner = GENERATE(from_range(kInner));
    const Batches batches = batches_of(6);
    OptimizerSettings together = settings_of(*inner.kind, {}),
                      local = settings_of(*inner.kind, {.every = 2, .start_step = 4});
    CAPTURE(inner.kind->title, int(inner.dtype));
    const auto parameters = [&](const OptimizerSettings& settings) {
        return on_ranks<std::vector<std::vector<float>>>(3, [&](Context& context) {
            if (settings.outer.every > 0) context.worker = alone();
            Trainer trainer(context, setup_of(3, inner.dtype), settings);
            std::vector<std::vector<float>> all;
            for (const GlobalBatch& batch : batches) {
                const auto scalars = trainer.step(batch, 1, 1e-2f);
                auto& now = all.emplace_back();
                if (inner.dtype == DType::fp32) now = trainer.master_weights();
                else for (const kernels::bf16 x : trainer.rounded()) now.push_back(kernels::bf16_to_float(x));
                now.push_back(scalars.grad_norm);
                now.push_back(float(scalars.loss));
            }
            return all;
        });
    };
    const auto of_workers = parameters(local), of_ranks = parameters(together);
    // Muon's ranks multiply all matrices at a time instead of a third, which a GPU's library may do by another kernel.
    const double tolerance = device::is_gpu() && inner.kind == &kMuon && inner.dtype == DType::fp32 ? 1e-4 : 0;
    for (std::size_t rank = 0; rank < 3; ++rank) {
        for (std::size_t step = 0; step < 4; ++step) {
            const auto& want = of_ranks[rank][step];
            CHECK(largest_error(of_workers[rank][step], std::vector<double>(want.begin(), want.end())) <= tolerance);
        }
        CHECK(of_workers[rank][4] != of_ranks[rank][4]);
    }
    CHECK(of_workers[0][4] != of_workers[1][4]);  // local steps
    CHECK(std::ranges::equal(std::span(of_workers[0][5]).first(100), std::span(of_workers[1][5]).first(100)));
}

TEST_CASE("workers with the same rows are one worker", "[outer][ranks]") {
    const int workers = GENERATE(2, 4);
    const Inner inner = GENERATE(Inner{&kAdamW, DType::fp32}, Inner{&kMuon, DType::bf16});
    const int rows = 12 / workers;
    Batches one, all;
    for (unsigned t = 0; t < 5; ++t) {
        one.push_back(random_batch(t, rows, 8));
        GlobalBatch& same = all.emplace_back(one.back());
        for (int k = 1; k < workers; ++k) {
            same.tokens.insert(same.tokens.end(), one[t].tokens.begin(), one[t].tokens.end());
            same.targets.insert(same.targets.end(), one[t].targets.begin(), one[t].targets.end());
        }
        same.rows = 12;
    }
    const OptimizerSettings settings = settings_of(*inner.kind, {.every = 2, .last_step = 5});
    const auto of_one = on_ranks<Course>(1, [&](Context& context) {
        ModelSetup setup = setup_of(workers, inner.dtype);
        Trainer trainer(context, setup, settings);
        Course course;
        make_steps(trainer, one, 0, one.size(), course);
        return course;
    });
    const auto of_all = run(workers, settings, all, inner.dtype);
    CAPTURE(workers, inner.kind->title);
    for (const Course& worker : of_all) CHECK(worker.weights == of_one[0].weights);
    CHECK(of_all[0].rounds[4]->cosine == Approx(1));
    CHECK(of_all[0].rounds[4]->change == Approx(of_all[0].rounds[4]->mean_change));
}

TEST_CASE("workers agree after an outer step, and what it reports is so", "[outer][ranks]") {
    const Inner inner = GENERATE(from_range(kInner));
    const Exchange exchange = GENERATE(from_range(kExchanges));
    const OuterSettings outer = exchange.of({.every = 2, .last_step = 5}, 3);
    const auto courses = run(3, settings_of(*inner.kind, outer), batches_of(5), inner.dtype);
    CAPTURE(inner.kind->title, int(inner.dtype), exchange.bits, exchange.errors);
    for (const std::size_t t : {1, 3, 4}) {  // after 2, 4 and 5 steps
        for (const Course& worker : courses) CHECK(worker.weights[t] == courses[0].weights[t]);
        REQUIRE(courses[1].rounds[t]);
        CHECK(courses[1].rounds[t]->round == std::int64_t(t == 4 ? 3 : (t + 1) / 2));
    }
    for (const std::size_t t : {0, 2}) {
        CHECK(courses[0].weights[t] != courses[1].weights[t]);
        CHECK(!courses[0].rounds[t]);
    }
    CHECK(courses[0].momentum == courses[2].momentum);
    const OuterRound& round = *courses[0].rounds[1];
    double loss = 0;
    for (const Course& worker : courses) loss += worker.scalars[1].loss / 3;
    CHECK(round.loss == Approx(loss));
    // Shards of equal length or nearly so, and the rows of three workers.
    CHECK(double(round.bytes_sent) == Approx(outer_bytes_sent(outer, ParameterTable(kTinyModel)) + 2 * 256)
                                          .epsilon(0.01));
    if (exchange.bits < 32) return;
    CHECK(double(round.bytes_sent) ==
          Approx(2 * 2.0 / 3 * 4 * double(ParameterTable(kTinyModel).elements()) + 2 * 256).epsilon(0.01));
    // Gradients of random tokens have nothing in common.
    CHECK(std::fabs(round.cosine) < 0.05);
    CHECK(round.mean_change == Approx(round.change / std::sqrt(3.0)).epsilon(0.03));
}

TEST_CASE("a worker that is not finite sends all back to the anchor", "[outer][ranks]") {
    if (!device::memory_is_host_memory()) return;
    const Batches batches = batches_of(6);
    const Exchange exchange = GENERATE(from_range(kExchanges));
    CAPTURE(exchange.bits, exchange.errors);
    struct Result {
        std::vector<float> anchor, after, momentum_before, momentum_after, errors_before, errors_after;
        std::optional<OuterRound> round, next;
    };
    const auto results = on_ranks<Result>(2, [&](Context& context) {
        context.worker = alone();
        Trainer trainer(context, setup_of(2), settings_of(kAdamW, exchange.of({.every = 2}, 2)));
        Result result;
        for (const std::size_t t : {0, 1}) trainer.step(batches[t], 1, 1e-2f);
        trainer.optimizer().round_after(2);
        result.anchor = trainer.master_weights();
        result.momentum_before = trainer.read_state(trainer.state_file("outer"));
        result.errors_before = trainer.read_state(trainer.state_file("outer_errors"));
        trainer.step(batches[2], 1, 1e-2f);
        if (context.world->rank() == 1) trainer.model().master_weights()[5] = NAN;
        trainer.step(batches[3], 1, 1e-2f);
        result.round = trainer.optimizer().round_after(4);
        result.after = trainer.master_weights();
        result.momentum_after = trainer.read_state(trainer.state_file("outer"));
        result.errors_after = trainer.read_state(trainer.state_file("outer_errors"));
        for (const std::size_t t : {4, 5}) trainer.step(batches[t], 1, 1e-2f);
        result.next = trainer.optimizer().round_after(6);
        return result;
    });
    for (const Result& of : results) {
        CHECK((of.round && of.round->skipped && of.round->skipped_in_a_row == 1));
        CHECK(of.after == of.anchor);
        CHECK(of.momentum_after == of.momentum_before);
        CHECK(of.errors_after == of.errors_before);
        CHECK(of.errors_after.empty() != exchange.errors);
        CHECK((of.next && !of.next->skipped && of.next->skipped_in_a_row == 0));
    }
}

namespace {

// Saves as a checkpoint does, and loads in new trainers of `to` workers.
struct Saved {
    std::vector<float> weights;
    std::map<std::string, int> files;
};

void save(Trainer& trainer, const ScratchFolder& folder, Communicator& ranks, Saved& saved,
          std::vector<OptimizerCounts>& counts) {
    const Optimizer& optimizer = trainer.optimizer().optimizer();
    const auto anchor = optimizer.weights_to_save();
    std::vector<float> flat(ranks.rank() == 0 ? std::size_t(trainer.table().elements()) : 0);
    if (anchor.empty()) trainer.model().copy_master_weights_to_host(flat);
    else if (ranks.rank() == 0) flat.assign(anchor.begin(), anchor.end());
    for (const StateFile& file : optimizer.state()) {
        const int files = file.every_rank ? ranks.size() : 1;
        if (file.every_rank || ranks.rank() == 0)
            write_state(folder / state_file_name(file.name, ranks.rank(), files), file, trainer.table().elements(),
                        trainer.read_state(file));
        if (ranks.rank() == 0) saved.files[file.name] = files;
    }
    counts[std::size_t(ranks.rank())] = trainer.optimizer().counts();
    if (ranks.rank() == 0) saved.weights = flat;
    ranks.barrier();
}

std::string load(Trainer& trainer, const ScratchFolder& folder, const Saved& saved, const OptimizerCounts& counts,
                 Communicator& ranks) {
    trainer.model().load(saved.weights);
    std::string notes;
    trainer.optimizer().load(counts, [&](const StateFile& file) {
        const auto files = saved.files.find(file.name);
        notes += read_state(file, {.folder = folder.path(), .files = files == saved.files.end() ? 0 : files->second,
                                   .elements = trainer.table().elements(), .rank = ranks.rank(), .ranks = ranks.size()},
                            [&](std::span<float> to, std::span<const float> values) {
            std::ranges::copy(values, to.begin());
        });
    });
    trainer.optimizer().round_parameters(trainer.model());
    return notes;
}

}  // namespace

TEST_CASE("workers resume with the same bits, in a round and between two", "[outer][ranks]") {
    if (!device::memory_is_host_memory()) return;
    const Inner inner = GENERATE(from_range(kInner));
    const std::size_t at = GENERATE(1, 3, 5, 6);  // together; between two rounds; in a round
    const Exchange exchange = GENERATE(from_range(kExchanges));
    const OuterSettings outer = exchange.of({.every = 2, .start_step = 3, .last_step = 9}, 3);
    const Batches batches = batches_of(9);
    CAPTURE(inner.kind->title, int(inner.dtype), at, exchange.bits, exchange.errors);
    const ScratchFolder folder;
    Saved saved;
    std::vector<OptimizerCounts> counts(3);
    const auto results = on_ranks<std::pair<Course, Course>>(3, [&](Context& context) {
        context.worker = alone();
        const OptimizerSettings settings = settings_of(*inner.kind, outer);
        Trainer whole(context, setup_of(3, inner.dtype), settings);
        std::pair<Course, Course> both;
        make_steps(whole, batches, 0, at, both.first);
        save(whole, folder, *context.world, saved, counts);
        both.first = {};
        make_steps(whole, batches, at, batches.size(), both.first);
        Trainer other(context, setup_of(3, inner.dtype), settings, 7);
        require(load(other, folder, saved, counts[std::size_t(context.world->rank())], *context.world).empty(),
                "a note", "printed", "none");
        make_steps(other, batches, at, batches.size(), both.second);
        return both;
    });
    for (const auto& [whole, other] : results) {
        CHECK(whole.weights == other.weights);
        CHECK(same_bits(whole.scalars, other.scalars));
        CHECK(whole.momentum == other.momentum);
        CHECK(whole.errors == other.errors);
        CHECK(whole.counts == other.counts);
    }
}

TEST_CASE("other numbers of workers continue from the mean of what they had", "[outer][ranks]") {
    if (!device::memory_is_host_memory()) return;
    const Inner inner = GENERATE(Inner{&kAdamW, DType::fp32}, Inner{&kMuon, DType::fp32});
    const std::size_t at = GENERATE(4, 5);  // between two rounds, and in one
    const OptimizerSettings local = settings_of(*inner.kind, {.every = 2}), together = settings_of(*inner.kind, {});
    const Batches batches = batches_of(8);
    const ScratchFolder folder;
    Saved saved;
    std::vector<OptimizerCounts> counts(3);
    struct State {
        std::vector<float> weights, moments, momentum;
        std::string notes;
        Course after;
    };
    const auto state_of = [](const Trainer& trainer) {
        State state{.weights = trainer.master_weights(), .moments = trainer.first_moments(), .momentum = {},
                    .notes = {}, .after = {}};
        state.momentum = trainer.read_state(trainer.state_file("outer"));
        return state;
    };
    const auto three = on_ranks<State>(3, [&](Context& context) {
        context.worker = alone();
        Trainer trainer(context, setup_of(3), local);
        Course course;
        make_steps(trainer, batches, 0, at, course);
        save(trainer, folder, *context.world, saved, counts);
        return state_of(trainer);
    });
    const auto loaded = [&](int ranks, const OptimizerSettings& settings) {
        return on_ranks<State>(ranks, [&](Context& context) {
            if (settings.outer.every > 0) context.worker = alone();
            Trainer trainer(context, setup_of(ranks), settings, 7);
            const std::string notes = load(trainer, folder, saved, counts[0], *context.world);
            State state = state_of(trainer);
            state.notes = notes;
            make_steps(trainer, batches, at, batches.size(), state.after);
            return state;
        });
    };
    const auto is_mean = [&](const std::vector<float>& mean, std::vector<float> State::*of) {
        for (std::size_t i = 0; i < mean.size(); ++i) {
            double sum = 0;
            for (const State& worker : three) sum += double((worker.*of)[i]);
            if (mean[i] != float(sum / 3)) return false;
        }
        return !mean.empty();
    };
    CAPTURE(inner.kind->title, at);
    const auto two = loaded(2, local);
    for (const State& worker : two) {
        CHECK(is_mean(worker.weights, &State::weights));
        CHECK(is_mean(worker.moments, &State::moments));
        CHECK(worker.momentum == three[0].momentum);
        CHECK(worker.notes.find("2 ranks instead of 3") != std::string::npos);
        CHECK(worker.after.weights.back() == two[0].after.weights.back());
    }
    if (at == 4) CHECK(is_mean(loaded(1, together)[0].moments, &State::moments));
}
