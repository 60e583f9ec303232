// outer_steps_ranks_test.cpp - local steps of workers and the outer step, with ranks as threads
#include <cmath>

#include "test/support/outer_support.h"

using namespace llmc;
using namespace test;

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
        GlobalBatch& same = all.emplace_back(one.back());
        for (int k = 1; k < workers; ++k) {
            same.tokens.insert(same.tokens.end(), one[t].tokens.begin(), one[t].tokens.end());
            same.targets.insert(same.targets.end(), one[t].targets.begin(), one[t].targets.end());
        }
        same.rows = 12;
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
