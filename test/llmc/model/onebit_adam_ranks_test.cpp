// onebit_adam_ranks_test.cpp - 1-bit Adam with ranks or nodes as workers: AdamW until the freeze, then the formulas
// applied to their gradients; masks, skipped steps, checkpoints, also of other nodes, and bit-identical results in any
// order of arrival
#include "llmc/model/onebit_adam.h"

#include "test/support/onebit_support.h"
#include "test/support/pattern.h"

using namespace llmc;
using namespace test;

namespace {

constexpr int kRanks = 3;

// Ranks, and how many of them are a node; 1: ranks are the workers.
struct Workers {
    int ranks, of_node;
    OptimizerSettings settings(OnebitSettings own = {.freeze_after = kWarmup}) const {
        own.ranks_per_node = of_node;
        return onebit(own);
    }
    int nodes() const { return ranks / of_node; }
    LocalSettings local() const { return {.ranks_per_node = of_node > 1 ? of_node : 0}; }
};
constexpr Workers kByRank{kRanks, 1}, kByNode{4, 2};

// What the ranks' gradients of step `t` add is applied, or pending in the workers' and servers' errors.
void check_conserved(const std::vector<std::vector<Snapshot>>& steps, std::size_t t, int workers, OnebitSpace space) {
    const Snapshot &before = steps[0][t - 1], &after = steps[0][t];
    const std::size_t elements = before.second.size();
    const auto pending = [&](std::size_t step) {
        if (step < kWarmup) return std::vector<double>(elements);
        std::vector<Snapshot> ranks;
        for (const auto& rank : steps) ranks.push_back(rank[step]);
        Pending all = pending_by(ranks, elements, workers);
        for (std::size_t i = 0; i < elements; ++i) all.workers[i] += all.servers[i];
        return all.workers;
    };
    const auto then = pending(t - 1), now = pending(t);
    double lost = 0, length = 0;
    for (std::size_t i = 0; i < elements; ++i) {
        if (before.second[i] == 0) continue;
        const double unit = space == OnebitSpace::update ? std::sqrt(double(before.second[i])) + 1e-8 : 1;
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

bool same_results(const std::vector<RankResult>& a, const std::vector<RankResult>& b) {
    bool same = a.size() == b.size();
    for (std::size_t rank = 0; same && rank < a.size(); ++rank)
        same = same_bits(a[rank].parameters, b[rank].parameters) && same_bits(a[rank].moments, b[rank].moments) &&
               same_bits(a[rank].scalars, b[rank].scalars);
    return same;
}

}  // namespace

TEST_CASE("the warm-up of 1-bit Adam is bit-identical to AdamW", "[ranks][onebit]") {
    const auto run = [](const OptimizerSettings& adamw) {
        return on_ranks<Snapshot>(kRanks, [&](Context& context) {
            Trainer trainer(context, short_setup(kRanks), adamw);
            for (unsigned t = 0; t < 5; ++t) trainer.step(short_batch(t), 1, 1e-2f);
            return snapshot(trainer);
        });
    };
    // The last one freezes AdamW's own second moment after the fifth step.
    const auto plain = run({}), warm = run(onebit({.freeze_after = 100})),
               frozen = run(onebit({.freeze_after = 5, .shadow_beta2 = 0}));
    for (std::size_t rank = 0; rank < kRanks; ++rank) {
        CHECK(same_parameters(warm[rank], plain[rank]));
        CHECK(frozen_after(warm[rank].counts) == 0);
        std::vector<float> corrected = plain[rank].second;
        for (float& v : corrected) v *= float(1 / (1 - std::pow(double(float(OptimizerSettings().beta2)), 5)));
        CHECK(same_bits(frozen[rank].second, corrected));
    }
}

// Evaluates the formulas of onebit_adam.h on all ranks' gradients, in float where signs depend on it.
TEST_CASE("a compressed step equals the formulas applied to the ranks' gradients", "[ranks][onebit]") {
    const OnebitSpace space = GENERATE(OnebitSpace::momentum, OnebitSpace::update);
    const OnebitScale scale = GENERATE(OnebitScale::bucket, OnebitScale::tensor, OnebitScale::block);
    const Workers of = GENERATE(kByRank, kByNode);
    if (kThreadSanitizer && (space != OnebitSpace::update || scale != OnebitScale::bucket)) return;
    const int workers = of.nodes();
    CAPTURE(int(space), int(scale), of.ranks);
    const auto steps = on_ranks<std::vector<Snapshot>>(of.ranks, [&](Context& context) {
        Trainer trainer(context, short_setup(of.ranks),
                        of.settings({.freeze_after = kWarmup, .scale = scale, .space = space}));
        std::vector<Snapshot> all;
        for (unsigned t = 0; t < kWarmup + 3; ++t) all.push_back(step_with_gradient(trainer, short_batch(t)));
        return all;
    }, of.local());
    const OptimizerSettings adamw;
    const auto eps = float(adamw.eps);
    const auto elements = std::size_t(ParameterTable(kTinyModel).elements());
    CHECK(frozen_after(steps[0][kWarmup - 1].counts) == kWarmup);
    // The second moment is frozen.
    CHECK(same_bits(steps[0][kWarmup - 1].second, steps[0][kWarmup].second));
    for (std::size_t t = kWarmup; t < kWarmup + 3; ++t) {
        CAPTURE(t);
        const Snapshot &before = steps[0][t - 1], &after = steps[0][t];
        const kernels::StepScalars& scalars = after.scalars;
        REQUIRE(scalars.skip == kernels::kNoSkip);
        REQUIRE(scalars.adam_step == std::int64_t(t) + 1);
        // The norm is an estimate of the sum's norm, and all ranks clip by the same factor.
        double squares = 0;
        std::size_t wrong = 0;
        for (std::size_t i = 0; i < elements; ++i) {
            double sum = 0;
            for (const auto& rank : steps) sum += double(rank[t].gradient[i]);
            squares += sum * sum;
            if (before.second[i] == 0) wrong += after.first[i] != 0;
            // AdamW's update with that momentum.
            const double update = double(scalars.learning_rate) * double(after.first[i]) *
                                  double(scalars.first_correction) / double(std::sqrt(before.second[i]) + eps);
            const double moved = double(before.master[i]) - double(after.master[i]);
            const double decay = double(scalars.learning_rate) * double(float(adamw.weight_decay)) *
                                 double(before.master[i]);
            wrong += std::min(std::fabs(moved - update), std::fabs(moved - update - decay)) >
                     1e-6 + 1e-4 * std::fabs(update);
        }
        CHECK(wrong == 0);
        CHECK(double(scalars.grad_norm) == Approx(std::sqrt(squares)).epsilon(0.05));
        CHECK(double(scalars.grad_scale) == Approx(std::min(1.0, 1 / double(scalars.grad_norm))).epsilon(1e-5));
        for (const auto& mine : steps) CHECK(same_parameters(mine[t], after));
        check_conserved(steps, t, workers, space);
    }
}

TEST_CASE("with the same data on all ranks the local gradients equal the warm-up's mean", "[ranks][onebit]") {
    const int micro_batches = GENERATE(1, 2);
    const GlobalBatch all = repeated(random_batch(5, 4, 8), kRanks);
    struct Gradients {
        std::vector<float> reduced, own;
        float norm, norm_of_own;
    };
    const auto ranks = on_ranks<Gradients>(kRanks, [&](Context& context) {
        const ModelSetup setup = short_setup(kRanks);
        Trainer plain(context, setup), compressed(context, setup, onebit({.freeze_after = 1}));
        Gradients mine;
        plain.step(all, micro_batches, 0);
        mine.reduced = plain.gradients();
        mine.norm = plain.optimizer().scalars().grad_norm;
        compressed.step(all, micro_batches, 0);  // a learning rate of 0 does not change the weights
        compressed.accumulate(all, micro_batches);
        mine.own = compressed.gradients();
        compressed.optimizer().run(compressed.model(), {.learning_rate = 0, .positions = all.positions()});
        mine.norm_of_own = compressed.optimizer().scalars().grad_norm;
        return mine;
    });
    for (const Gradients& mine : ranks) {
        CHECK(mine.norm_of_own == Approx(mine.norm).epsilon(0.05));
        double difference = 0, length = 0;
        for (std::size_t i = 0; i < mine.own.size(); ++i) {
            const double expected = double(mine.reduced[i]), got = kRanks * double(mine.own[i]);
            difference += (got - expected) * (got - expected);
            length += expected * expected;
        }
        CHECK(difference < 1e-10 * length);
    }
}

TEST_CASE("a non-finite gradient on one rank does not change the state of any rank", "[ranks][onebit]") {
    const float bad = GENERATE(NAN, INFINITY, 1e38f);  // 1e38 is finite, but its square is not
    const auto [of, failing] = GENERATE(table<Workers, int>({{kByRank, 1}, {kByNode, 0}, {kByNode, 3}}));
    if (kThreadSanitizer && !std::isnan(bad)) return;
    CAPTURE(bad, of.ranks, failing);
    const auto all = on_ranks<std::vector<Snapshot>>(of.ranks, [&, of = of, failing = failing](Context& context) {
        Trainer trainer(context, short_setup(of.ranks), of.settings());
        std::vector<Snapshot> steps;
        for (unsigned t = 0; t < kWarmup + 3; ++t) {  // in the second compressed step
            const bool now = t == kWarmup + 1 && context.world->rank() == failing;
            steps.push_back(step_with_gradient(trainer, short_batch(t), now ? bad : 1.0f));
        }
        return steps;
    }, of.local());
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

// Tensors that the pattern matches, some but not all, are bit-identical to AdamW's after one compressed step, and have
// no errors; the others differ, and are identical on all ranks.
TEST_CASE("tensors excluded from compression are updated as by AdamW", "[ranks][onebit]") {
    const auto [of, exclude] = GENERATE(table<Workers, std::string>({{kByRank, "wpe|ln_"}, {kByRank, "\\.weight$"},
                                                                     {kByNode, "wpe|ln_"}}));
    const bool bf16 = GENERATE(false, true);
    CAPTURE(exclude, bf16, of.ranks);
    const auto run = [&, of = of](OptimizerSettings adamw) {
        adamw.max_grad_norm = 0;  // AdamW's norm is exact, 1-bit Adam's is an estimate
        return on_ranks<Snapshot>(of.ranks, [&](Context& context) {
            Trainer trainer(context, short_setup(of.ranks), adamw, 1, {.reduce_in_bf16 = bf16});
            for (unsigned t = 0; t < kWarmup + 1; ++t) trainer.step(short_batch(t), 1, 1e-2f);
            return snapshot(trainer);
        }, of.local());
    };
    const auto want = run({}), got = run(of.settings({.freeze_after = kWarmup, .exclude = exclude}));
    const ParameterTable table(kTinyModel);
    const Pattern expression(exclude);
    int excluded_tensors = 0;
    for (const ParameterSpec& spec : table.tensors()) {
        const auto of_tensor = [&](const std::vector<float>& flat) {
            return std::span(flat).subspan(std::size_t(spec.offset), std::size_t(spec.size()));
        };
        const bool excluded = expression.in(spec.name);
        excluded_tensors += excluded;
        for (std::size_t rank = 0; rank < got.size(); ++rank) {
            CAPTURE(spec.name, rank);
            CHECK(same_bits(of_tensor(got[rank].master), of_tensor(got[0].master)));
            CHECK(same_bits(of_tensor(got[rank].master), of_tensor(want[rank].master)) == excluded);
            CHECK(same_bits(of_tensor(got[rank].first), of_tensor(want[rank].first)) == excluded);
            if (!excluded) continue;
            CHECK(same_bits(of_tensor(got[rank].second), of_tensor(want[rank].second)));
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

TEST_CASE("invalid regular expressions, and ones that match no or all tensors, are refused", "[onebit]") {
    const ParameterTable table(kTinyModel);
    const auto refusal = [&](const std::string& exclude) {
        return error_of([&] { onebit_bytes(table, {.rank = 0, .ranks = 2}, onebit({.exclude = exclude})); });
    };
    CHECK_THAT(refusal("attention"), test::Contains("matches none of the tensors"));
    CHECK_THAT(refusal("."), test::Contains("matches all of the tensors"));
    CHECK_THAT(refusal("(wte"), test::Contains("expected an extended regular expression"));
    CHECK_THAT(refusal(std::string(20000, '(') + 'w' + std::string(20000, ')')),
               test::Contains("the length of --onebit-exclude is 40001; expected at most 1000"));
    CHECK_THAT(refusal("(.*.*.*.*.*.*)*X"), test::Contains("matches none of the tensors"));
    CHECK(refusal("wte") == "accepted");
}

TEST_CASE("auto freezes when the second moment has settled and the learning rate is past its warm-up", "[onebit]") {
    const std::int64_t warmup = GENERATE(0, 12);
    const auto updates = on_ranks<std::int64_t>(1, [&](Context& context) {
        Trainer trainer(context, short_setup(1), onebit({.freeze_after = 0, .settling_updates = 5,
                                                         .lr_warmup_steps = warmup}));
        // With a learning rate of 0 and one batch, every gradient is the same, and so is the corrected second moment.
        for (unsigned t = 0; t < 20; ++t) trainer.step(short_batch(3), 1, 0);
        return frozen_after(trainer.optimizer().counts());
    });
    CHECK(updates[0] == (warmup == 0 ? 10 : 15));
}

TEST_CASE("1-bit Adam is bit-identical in every order of arrival", "[ranks][onebit]") {
    const auto [of, bf16] = GENERATE(table<Workers, bool>({{{2, 1}, false}, {{4, 1}, false}, {kByNode, false},
                                                           {kByNode, true}}));
    const auto run = [&, of = of, bf16 = bf16](LocalSettings local) {
        local.ranks_per_node = of.local().ranks_per_node;
        return on_ranks<RankResult>(of.ranks, onebit_run(of.settings(), {.reduce_in_bf16 = bf16}), local);
    };
    const auto want = run({});
    for (const LocalSettings& local :
         {LocalSettings{.order = LocalOrder::late}, LocalSettings{.order = LocalOrder::early},
          LocalSettings{.delay = std::chrono::microseconds(200), .seed = 5}})
        CHECK(same_results(run(local), want));
    for (const RankResult& rank : want) {
        CHECK(same_bits(rank.parameters, want[0].parameters));
        CHECK(rank.scalars.back().skip == kernels::kNoSkip);
    }
    CHECK(!same_bits(want[0].moments, want[1].moments));
}

TEST_CASE("nodes of one rank behave like ranks, and a single node does not compress", "[ranks][onebit]") {
    const auto run = [](int of_node, const OnebitSettings& settings) {
        return on_ranks<RankResult>(4, [&](Context& context) {
            const Workers found{4, ranks_per_node(nodes_of(*context.world))};
            return onebit_run(found.settings(settings))(context);
        }, {.ranks_per_node = of_node});
    };
    const OnebitSettings plain{.freeze_after = kWarmup};
    CHECK(same_results(run(1, plain), on_ranks<RankResult>(4, onebit_run(onebit(plain)))));
    const auto one_node = run(4, plain);
    CHECK(same_results(one_node, run(1, {.freeze_after = kWarmup, .frozen_only = true})));
    CHECK(one_node[0].moments.empty());
    CHECK(!same_bits(one_node[0].parameters, run(2, plain)[0].parameters));
}

// Only the ranks with one local rank see it: the norm's estimate and the gradient are finite, the compensated value is
// not.
TEST_CASE("non-finite compensated values on one local rank skip the step on all ranks", "[ranks][onebit]") {
    const auto ranks = on_ranks<std::vector<Snapshot>>(kByNode.ranks, [&](Context& context) {
        Trainer trainer(context, short_setup(kByNode.ranks), kByNode.settings());
        std::vector<Snapshot> all;
        for (unsigned t = 0; t < kWarmup + 2; ++t) {
            if (t == kWarmup + 1 && context.world->rank() == 2) {
                std::vector<float> errors = all.back().errors;
                errors[0] = 3e38f;
                trainer.write_state(trainer.state_file("onebit"), errors);
            }
            all.push_back(step_with_gradient(trainer, short_batch(t)));
        }
        return all;
    }, kByNode.local());
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
        const Snapshot &before = ranks[rank][kWarmup], &skipped = ranks[rank][kWarmup + 1];
        CHECK(skipped.scalars.skip == kernels::kSkipNonFinite);
        CHECK(same_parameters(skipped, before));
        if (rank != 2) CHECK(same_bits(skipped.errors, before.errors));
    }
}

TEST_CASE("other nodes resume with the pending errors, or print that they start at 0", "[ranks][onebit]") {
    constexpr Workers kBefore{6, 3};
    const auto [now, note] = GENERATE(table<Workers, const char*>(
        {{{4, 2}, "optimizer state onebit: 4 ranks instead of 6: each starts with the mean of "},
         {{6, 2}, "optimizer state onebit: 6 ranks grouped otherwise: each starts with the "},
         {{6, 3}, "optimizer state onebit: 6 ranks grouped otherwise: each starts with the "},
         {{6, 1}, "optimizer state onebit: starts at 0, because the checkpoint's is for "}}));
    CAPTURE(now.ranks, now.of_node);
    const ScratchFolder folder;
    const auto elements = std::size_t(ParameterTable(kTinyModel).elements());
    const auto were = on_ranks<Snapshot>(kBefore.ranks, [&](Context& context) {
        const int rank = context.world->rank();
        Trainer trainer(context, short_setup(kBefore.ranks), kBefore.settings());
        for (unsigned t = 0; t < kWarmup + 2; ++t) trainer.step(short_batch(t), 1, 1e-2f);
        const Snapshot then = snapshot(trainer);
        StateFile file = trainer.state_file("onebit");
        std::erase_if(file.marks, [](const StateFile::Mark& mark) { return mark.key == "shards"; });  // as in 0.3.0
        write_state(folder / state_file_name("onebit", rank, kBefore.ranks), file, then.errors);
        return then;
    }, kBefore.local());
    std::vector<std::string> notes(std::size_t(now.ranks));
    const auto are = on_ranks<Snapshot>(now.ranks, [&, now = now](Context& context) {
        const int rank = context.world->rank();
        Trainer trainer(context, short_setup(now.ranks), now.settings());
        trainer.step(short_batch(0), 1, 0);  // scalars for the snapshot
        notes[std::size_t(rank)] = load_from(trainer, were[0], folder, kBefore.ranks, *context.world);
        return snapshot(trainer);
    }, {.ranks_per_node = now.of_node});
    for (const std::string& heard : notes) CHECK_THAT(heard, Contains(note));
    const Pending then = pending_by(were, elements, kBefore.nodes()),
               left = pending_by(are, elements, now.nodes());
    std::size_t wrong = 0, nonzero = 0;
    for (std::size_t i = 0; i < elements; ++i) {
        const bool zero = now.of_node == 1;
        wrong += std::fabs(left.workers[i] - (zero ? 0 : then.workers[i])) > 1e-7 * std::fabs(then.workers[i]);
        wrong += left.servers[i] != (zero ? 0 : then.servers[i]);
        nonzero += then.workers[i] != 0;
    }
    CHECK(wrong == 0);
    CHECK(nonzero > elements / 2);
}
