// onebit_adam_ranks_test.cpp - 1-bit Adam with ranks or nodes as workers: AdamW until the freeze, then the formulas
// applied to their gradients; masks, skipped steps, checkpoints, and bit-identical results in any order of arrival
#include "llmc/model/onebit_adam.h"

#include "test/support/onebit_support.h"

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
    LocalSettings local() const { return {.ranks_per_node = of_node > 1 ? of_node : 0}; }
};
constexpr Workers kByRank{kRanks, 1}, kByNode{4, 2};

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
    const int workers = of.ranks / of.of_node;
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
    GlobalBatch one = random_batch(5, 4, 8), all{12, 8, {}, {}};
    for (int rank = 0; rank < kRanks; ++rank) {
        all.tokens.insert(all.tokens.end(), one.tokens.begin(), one.tokens.end());
        all.targets.insert(all.targets.end(), one.targets.begin(), one.targets.end());
    }
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
    check_not_finite(of.ranks, failing, bad, of.settings(), of.local());
}

TEST_CASE("tensors excluded from compression are updated as by AdamW", "[ranks][onebit]") {
    const auto [of, exclude] = GENERATE(table<Workers, std::string>({{kByRank, "wpe|ln_"}, {kByRank, "\\.weight$"},
                                                                     {kByNode, "wpe|ln_"}}));
    const bool bf16 = GENERATE(false, true);
    CAPTURE(exclude, bf16, of.ranks);
    check_excluded(of.ranks, {.freeze_after = kWarmup, .exclude = exclude, .ranks_per_node = of.of_node}, bf16,
                   of.local());
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
    const auto want = in_any_order(of.ranks, onebit_run(of.settings(), {.reduce_in_bf16 = bf16}),
                                   of.local().ranks_per_node);
    for (const RankResult& rank : want) {
        CHECK(same_bits(rank.parameters, want[0].parameters));
        CHECK(rank.scalars.back().skip == kernels::kNoSkip);
    }
    CHECK(!same_bits(want[0].moments, want[1].moments));
}
