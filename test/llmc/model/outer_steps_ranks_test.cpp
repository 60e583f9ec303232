// outer_steps_ranks_test.cpp - local steps of workers, the outer step, and their state in a checkpoint, with ranks as
// threads
#include "llmc/model/outer_steps.h"

#include <cmath>

#include "llmc/model/muon.h"
#include "llmc/model/state_files.h"
#include "test/support/onebit_support.h"

using namespace llmc;
using namespace test;
using kernels::DType;

namespace {

OptimizerSettings settings_of(const OptimizerKind& kind, const OuterSettings& outer) {
    OptimizerSettings settings{.kind = &kind, .outer = outer};
    resolve_auto(settings.outer, std::max(int(outer.workers), 1), outer.seq_len);
    if (kind.own) settings.own = kind.own();
    return settings;
}
struct Inner {
    const OptimizerKind* kind;
    DType dtype;
};
const std::vector<Inner> kInner{{&kAdamW, DType::fp32}, {&kAdamW, DType::bf16}, {&kMuon, DType::fp32},
                                {&kMuon, DType::bf16}};

// Division of one rank each, or of several.
struct Division {
    int workers, ranks_each;
    int ranks() const { return workers * ranks_each; }
};
void divide(Context& context, int ranks_each) {
    Communicator& world = *context.world;
    if (ranks_each == 1) {
        context.worker = alone();
        return;
    }
    context.worker = world.split(world.rank() / ranks_each);
    context.across = world.split(world.rank() % ranks_each);
}
ModelSetup setup_of(int ranks, DType dtype = DType::fp32, int ranks_each = 1, int stage = 1) {
    ModelSetup setup = short_setup(ranks);
    setup.dtype = dtype;
    setup.sharding.stage = ranks_each > 1 ? stage : 0;
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
}

std::vector<Course> run(int ranks, const OptimizerSettings& settings, const Batches& batches, DType dtype = DType::fp32,
                        int ranks_each = 1, int stage = 1) {
    return on_ranks<Course>(ranks, [&](Context& context) {
        if (settings.outer.every > 0) divide(context, ranks_each);
        Trainer trainer(context, setup_of(ranks, dtype, ranks_each, stage), settings);
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

// What a checkpoint has, besides the state files.
struct Saved {
    std::vector<float> weights;
    OptimizerCounts counts;
    std::map<std::string, int> files;
};

// Saves as a checkpoint does, with two ranks in a worker.
void save(Trainer& trainer, const ScratchFolder& folder, Communicator& ranks, Saved& saved) {
    const Optimizer& optimizer = trainer.optimizer().optimizer();
    const bool is_first = ranks.rank() == 0;
    const auto anchor = optimizer.weights_to_save();
    std::vector<float> flat(is_first ? std::size_t(trainer.table().elements()) : 0);
    if (anchor.empty()) trainer.model().copy_master_weights_to_host(flat);
    else trainer.model().copy_to_host(anchor, false, flat);
    for (const StateFile& file : optimizer.state()) {
        const int files = file.files(ranks.size(), 2);
        if (ranks.rank() < files)
            write_state(folder / state_file_name(file.name, ranks.rank(), files), file, trainer.read_state(file));
        if (is_first) saved.files[file.name] = files;
    }
    if (is_first) saved.weights = flat, saved.counts = trainer.optimizer().counts();
    ranks.barrier();
}

std::string load(Trainer& trainer, const ScratchFolder& folder, const Saved& saved, Communicator& ranks) {
    trainer.model().load(saved.weights);
    std::string notes;
    trainer.optimizer().load(saved.counts, [&](const StateFile& file) {
        const auto files = saved.files.find(file.name);
        notes += read_state(file, {.folder = folder.path(), .files = files == saved.files.end() ? 0 : files->second,
                                   .rank = ranks.rank(), .ranks = ranks.size()},
                            [&](std::span<float> to, std::span<const float> values) {
            std::ranges::copy(values, to.begin());
        });
    });
    trainer.optimizer().round_parameters(trainer.model());
    return notes;
}

}  // namespace

TEST_CASE("one worker with outer steps (1, 0) makes the steps of its optimizer", "[outer][ranks]") {
    const Inner inner = GENERATE(from_range(kInner));
    const std::int64_t every = GENERATE(1, 3);
    const int ranks = GENERATE(1, 2);
    Batches batches = batches_of(5);
    std::ranges::fill(batches[3].targets, kernels::kIgnoreTarget);  // a skipped step
    const auto outer = run(ranks, settings_of(*inner.kind, {.every = every, .learning_rate = 1, .momentum = 0}),
                           batches, inner.dtype, ranks),
               plain = run(ranks, settings_of(*inner.kind, {}), batches, inner.dtype, ranks);
    CAPTURE(inner.kind->title, int(inner.dtype), every, ranks);
    for (std::size_t rank = 0; rank < outer.size(); ++rank) {
        CHECK(outer[rank].weights == plain[rank].weights);
        CHECK(same_bits(outer[rank].scalars, plain[rank].scalars));
    }
    CHECK(outer[0].scalars[3].skip == kernels::kSkipNoTargets);
}

TEST_CASE("before --outer-start-step ranks train together, with the same bits", "[outer][ranks]") {
    const Inner inner = GENERATE(from_range(kInner));
    const Division workers = GENERATE(Division{3, 1}, Division{2, 2});
    const Batches batches = batches_of(6);
    OptimizerSettings together = settings_of(*inner.kind, {}),
                      local = settings_of(*inner.kind, {.every = 2, .start_step = 4});
    CAPTURE(inner.kind->title, int(inner.dtype), workers.ranks_each);
    const auto parameters = [&](const OptimizerSettings& settings) {
        return on_ranks<std::vector<std::vector<float>>>(workers.ranks(), [&](Context& context) {
            if (settings.outer.every > 0) divide(context, workers.ranks_each);
            Trainer trainer(context, setup_of(workers.ranks(), inner.dtype, workers.ranks_each), settings);
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
    for (std::size_t rank = 0; rank < of_workers.size(); ++rank) {
        for (std::size_t step = 0; step < 4; ++step) {
            const auto& want = of_ranks[rank][step];
            CHECK(largest_error(of_workers[rank][step], std::vector<double>(want.begin(), want.end())) <= tolerance);
        }
        CHECK(of_workers[rank][4] != of_ranks[rank][4]);
    }
    const auto &first = of_workers[0], &other = of_workers[std::size_t(workers.ranks_each)];
    CHECK(first[4] != other[4]);  // local steps
    CHECK(std::ranges::equal(std::span(first[5]).first(100), std::span(other[5]).first(100)));
    for (std::size_t step = 4; step < 6 && workers.ranks_each > 1; ++step)
        CHECK(of_workers[0][step] == of_workers[1][step]);
}

TEST_CASE("workers with the same rows are one worker", "[outer][ranks]") {
    const auto [workers, ranks_each] = GENERATE(Division{2, 1}, Division{4, 1}, Division{2, 2});
    const Inner inner = GENERATE(Inner{&kAdamW, DType::fp32}, Inner{&kMuon, DType::bf16});
    const int rows = 12 / workers, ranks = workers * ranks_each;
    Batches one, all;
    for (unsigned t = 0; t < 5; ++t) {
        one.push_back(random_batch(t, rows, 8));
        all.push_back(repeated(one.back(), workers));
    }
    const OptimizerSettings settings = settings_of(*inner.kind, {.every = 2, .last_step = 5});
    const auto of_one = on_ranks<Course>(ranks_each, [&, ranks_each = ranks_each](Context& context) {
        divide(context, ranks_each);
        Trainer trainer(context, setup_of(ranks, inner.dtype, ranks_each), settings);
        Course course;
        make_steps(trainer, one, 0, one.size(), course);
        return course;
    });
    const auto of_all = run(ranks, settings, all, inner.dtype, ranks_each);
    CAPTURE(workers, ranks_each, inner.kind->title);
    for (std::size_t rank = 0; rank < of_all.size(); ++rank)
        CHECK(of_all[rank].weights == of_one[rank % std::size_t(ranks_each)].weights);
    CHECK(of_all[0].rounds[4]->cosine == Approx(1));
    CHECK(of_all[0].rounds[4]->change == Approx(of_all[0].rounds[4]->mean_change));
}

TEST_CASE("workers agree after an outer step, and what it reports is so", "[outer][ranks]") {
    const Inner inner = GENERATE(from_range(kInner));
    const Exchange exchange = GENERATE(from_range(kExchanges));
    const Division workers = GENERATE(Division{3, 1}, Division{2, 2});
    const auto each = std::size_t(workers.ranks_each);
    const OuterSettings outer = exchange.of({.every = 2, .last_step = 5}, workers.workers);
    const auto courses = run(workers.ranks(), settings_of(*inner.kind, outer), batches_of(5), inner.dtype,
                             workers.ranks_each);
    CAPTURE(inner.kind->title, int(inner.dtype), exchange.bits, exchange.errors, each);
    for (const std::size_t t : {1, 3, 4}) {  // after 2, 4 and 5 steps
        for (std::size_t rank = each; rank < courses.size(); ++rank)
            CHECK(courses[rank].weights[t] == courses[rank - each].weights[t]);
        REQUIRE(courses[1].rounds[t]);
        CHECK(courses[1].rounds[t]->round == std::int64_t(t == 4 ? 3 : (t + 1) / 2));
    }
    for (const std::size_t t : {0, 2}) {
        CHECK(courses[0].weights[t] != courses[each].weights[t]);
        CHECK(!courses[0].rounds[t]);
    }
    CHECK(courses[0].momentum == courses[2].momentum);
    const OuterRound& round = *courses[0].rounds[1];
    const ParameterTable table(kTinyModel);
    double loss = 0, sent = 0;
    for (const Course& rank : courses) loss += rank.scalars[1].loss / double(courses.size());
    CHECK(round.loss == Approx(loss));
    for (std::size_t rank = 0; rank < each; ++rank) sent += double(courses[rank].rounds[1]->bytes_sent);
    // Shards of equal length or nearly so, and rows of three workers.
    const double rows = each == 1 ? 2 * 256 : 0;
    const Sharding sharding{.stage = each > 1 ? 1 : 0, .ranks = int(each), .whole_matrices = inner.kind == &kMuon};
    CHECK(sent == Approx(outer_bytes_sent(outer, table, sharding) + rows).epsilon(0.01));
    if (exchange.bits < 32 && each == 1) {  // how far the anchor moves in the direction of an exact exchange
        const auto exact = run(3, settings_of(*inner.kind, kExchanges[0].of({.every = 2, .last_step = 5}, 3)),
                               batches_of(5), inner.dtype);
        const auto before = initial_weights(table, 1);
        double product = 0, square = 0, difference = 0;
        for (std::size_t i = 0; i < before.size(); ++i) {
            const double moved = courses[0].weights[1][i] - before[i], want = exact[0].weights[1][i] - before[i];
            product += moved * want, square += want * want, difference += (moved - want) * (moved - want);
        }
        CAPTURE(product / square, difference / square);
        CHECK((product > (exchange.bits == 4 ? 0.95 : 0.4) * square && product < 1.05 * square));
        if (exchange.bits == 4) CHECK(difference < 0.1 * square);
    }
    if (exchange.bits < 32) return;
    CHECK(sent == Approx(2 * (1 - 1.0 / workers.workers) * 4 * double(table.elements()) + rows).epsilon(0.01));
    // Gradients of random tokens have nothing in common.
    CHECK(std::fabs(round.cosine) < 0.05);
    CHECK(round.mean_change == Approx(round.change / std::sqrt(double(workers.workers))).epsilon(0.03));
}

TEST_CASE("workers whose ranks divide gradients, too, make the same steps", "[outer][ranks]") {
    const Inner inner = GENERATE(from_range(kInner));
    const Exchange exchange = GENERATE(from_range(kExchanges));
    const OptimizerSettings settings = settings_of(*inner.kind, exchange.of({.every = 2, .last_step = 5}, 2));
    const auto of_stage = [&](int stage) { return run(4, settings, batches_of(5), inner.dtype, 2, stage); };
    const auto state = of_stage(1), gradients = of_stage(2);
    CAPTURE(inner.kind->title, int(inner.dtype), exchange.bits, exchange.errors);
    for (std::size_t rank = 0; rank < state.size(); ++rank) {
        CHECK((gradients[rank].weights == state[rank].weights));
        CHECK(same_bits(gradients[rank].scalars, state[rank].scalars));
        CHECK((gradients[rank].momentum == state[rank].momentum));
        CHECK((gradients[rank].errors == state[rank].errors));
        CHECK(gradients[rank].rounds[4]->change == state[rank].rounds[4]->change);
    }
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
    const int ranks_each = GENERATE(1, 2);
    const auto results = on_ranks<Result>(2 * ranks_each, [&](Context& context) {
        divide(context, ranks_each);
        Trainer trainer(context, setup_of(2 * ranks_each, DType::fp32, ranks_each),
                        settings_of(kAdamW, exchange.of({.every = 2}, 2)));
        Result result;
        for (const std::size_t t : {0, 1}) trainer.step(batches[t], 1, 1e-2f);
        trainer.optimizer().round_after(2);
        result.anchor = trainer.master_weights();
        result.momentum_before = trainer.read_state(trainer.state_file("outer"));
        result.errors_before = trainer.read_state(trainer.state_file("outer_errors"));
        trainer.step(batches[2], 1, 1e-2f);
        // The final LayerNorm's first bias, which the last rank of a worker owns, after its gather.
        trainer.model().wait_for_parameters();
        if (context.world->rank() == 2 * ranks_each - 1) trainer.model().master_weights().end()[-kTensorMultiple] = NAN;
        trainer.step(batches[3], 1, 1e-2f);
        result.round = trainer.optimizer().round_after(4);
        result.after = trainer.master_weights();
        result.momentum_after = trainer.read_state(trainer.state_file("outer"));
        result.errors_after = trainer.read_state(trainer.state_file("outer_errors"));
        for (const std::size_t t : {4, 5}) trainer.step(batches[t], 1, 1e-2f);
        result.next = trainer.optimizer().round_after(6);
        return result;
    }, {.order = LocalOrder::early});
    for (const Result& of : results) {
        CHECK((of.round && of.round->skipped && of.round->skipped_in_a_row == 1));
        CHECK((of.after == of.anchor));
        CHECK((of.momentum_after == of.momentum_before));
        CHECK((of.errors_after == of.errors_before));
        CHECK(of.errors_after.empty() != exchange.errors);
        CHECK((of.next && !of.next->skipped && of.next->skipped_in_a_row == 0));
    }
}

TEST_CASE("workers of several ranks continue with others from the mean of what they had", "[outer][ranks]") {
    if (!device::memory_is_host_memory()) return;
    const Inner inner = GENERATE(Inner{&kAdamW, DType::fp32}, Inner{&kMuon, DType::bf16});
    const Exchange exchange = GENERATE(Exchange{32, false}, Exchange{1, true});
    const std::size_t at = GENERATE(1, 4, 5);  // together, between two rounds, and in one
    const Batches batches = batches_of(8);
    const ScratchFolder folder;
    Saved saved;
    struct State {
        std::vector<float> weights;
        std::string notes;
        Course after;
    };
    const auto settings_for = [&](int workers) {
        return settings_of(*inner.kind, exchange.of({.every = 2, .start_step = 2, .last_step = 8}, workers));
    };
    const auto of_two = on_ranks<std::vector<float>>(4, [&](Context& context) {
        divide(context, 2);
        Trainer trainer(context, setup_of(4, inner.dtype, 2), settings_for(2));
        Course course;
        make_steps(trainer, batches, 0, at, course);
        save(trainer, folder, *context.world, saved);
        return trainer.master_weights();
    });
    const auto loaded = [&](const Division& to) {
        return on_ranks<State>(to.ranks(), [&](Context& context) {
            divide(context, to.ranks_each);
            Trainer trainer(context, setup_of(to.ranks(), inner.dtype, to.ranks_each), settings_for(to.workers), 7);
            State state{.weights = {}, .notes = load(trainer, folder, saved, *context.world), .after = {}};
            state.weights = trainer.master_weights();
            make_steps(trainer, batches, at, batches.size(), state.after);
            return state;
        });
    };
    CAPTURE(inner.kind->title, exchange.bits, at);
    for (const Division& to : {Division{4, 1}, Division{2, 1}, Division{1, 4}}) {
        if (to.workers == 1 && exchange.bits < 32) continue;
        const auto states = loaded(to);
        CAPTURE(to.workers, states[0].notes);
        if (at == 1) CHECK(states[0].notes.empty());
        else
            CHECK_THAT(states[0].notes, Contains(to.ranks() == 4 ? std::to_string(to.workers) + " worker"
                                                                 : "2 ranks instead of 4"));
        if (inner.dtype == DType::fp32)
            for (std::size_t i = 0; i < states[0].weights.size(); ++i)
                if (states[0].weights[i] != float((double(of_two[0][i]) + double(of_two[2][i])) / 2))
                    FAIL("weight " << i);
        for (std::size_t rank = std::size_t(to.ranks_each); rank < states.size(); ++rank)
            CHECK(states[rank].after.weights.back() == states[0].after.weights.back());
    }
}
