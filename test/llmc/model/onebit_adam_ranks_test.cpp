// onebit_adam_ranks_test.cpp - 1-bit Adam on several ranks: AdamW until the freeze, then the formulas applied to the
// ranks' gradients; masks, skipped steps, checkpoints, and bit-identical results in any order of arrival
#include "llmc/model/onebit_adam.h"

#include <algorithm>

#include "test/support/onebit_support.h"
#include "test/support/processes.h"

using namespace llmc;
using namespace test;

namespace {

constexpr int kRanks = 3;

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
        for (float& v : corrected) v *= float(1 / (1 - std::pow(double(OptimizerSettings().beta2), 5)));
        CHECK(same_bits(frozen[rank].second, corrected));
    }
}

// Evaluates the formulas of onebit_adam.h on all ranks' gradients, in float where signs depend on it.
TEST_CASE("a compressed step equals the formulas applied to the ranks' gradients", "[ranks][onebit]") {
    const OnebitSpace space = GENERATE(OnebitSpace::momentum, OnebitSpace::update);
    const OnebitScale scale = GENERATE(OnebitScale::bucket, OnebitScale::tensor, OnebitScale::block);
    if (kThreadSanitizer && (space != OnebitSpace::update || scale != OnebitScale::bucket)) return;
    const ParameterTable table(kTinyModel);
    const auto steps = on_ranks<std::vector<Snapshot>>(kRanks, [&](Context& context) {
        Trainer trainer(context, short_setup(kRanks),
                        onebit({.freeze_after = kWarmup, .scale = scale, .space = space}));
        std::vector<Snapshot> all;
        for (unsigned t = 0; t < kWarmup + 3; ++t) all.push_back(step_with_gradient(trainer, short_batch(t)));
        return all;
    });
    CAPTURE(int(space), int(scale));
    const OptimizerSettings adamw;
    const auto elements = std::size_t(table.elements());
    CHECK(frozen_after(steps[0][kWarmup - 1].counts) == kWarmup);
    // The second moment is frozen.
    CHECK(same_bits(steps[0][kWarmup - 1].second, steps[0][kWarmup].second));
    for (std::size_t t = kWarmup; t < kWarmup + 3; ++t) {
        CAPTURE(t);
        const Snapshot& before = steps[0][t - 1];
        const kernels::StepScalars& scalars = steps[0][t].scalars;
        REQUIRE(scalars.skip == kernels::kNoSkip);
        REQUIRE(scalars.adam_step == std::int64_t(t) + 1);
        // The norm is an estimate of the sum's norm, and all ranks clip by the same factor.
        double squares = 0;
        for (std::size_t i = 0; i < elements; ++i) {
            double sum = 0;
            for (const auto& rank : steps) sum += double(rank[t].gradient[i]);
            squares += sum * sum;
        }
        CHECK(double(scalars.grad_norm) == Approx(std::sqrt(squares)).epsilon(0.05));
        CHECK(double(scalars.grad_scale) == Approx(std::min(1.0, 1 / double(scalars.grad_norm))).epsilon(1e-5));
        double wrong = 0;
        for (std::size_t i = 0; i < elements; ++i) {
            const float v = before.second[i], denominator = std::sqrt(v) + adamw.eps;
            if (v == 0) {
                for (const auto& rank : steps) wrong += rank[t].errors[i] != 0;
                wrong += steps[0][t].first[i] != 0;
            }
            // AdamW's update with that momentum.
            const double update = double(scalars.learning_rate) * double(steps[0][t].first[i]) *
                                  double(scalars.first_correction) / double(denominator);
            const double moved = double(before.master[i]) - double(steps[0][t].master[i]);
            const double decay = double(scalars.learning_rate) * double(adamw.weight_decay) *
                                 double(before.master[i]);
            wrong += std::min(std::fabs(moved - update), std::fabs(moved - update - decay)) >
                     1e-6 + 1e-4 * std::fabs(update);
        }
        CHECK(wrong == 0);
        for (std::size_t rank = 1; rank < kRanks; ++rank) CHECK(same_parameters(steps[rank][t], steps[0][t]));
    }
    for (std::size_t t = kWarmup; t < kWarmup + 3; ++t) check_conserved(steps, t, kRanks, space);
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

// The gradient of a key's bias is 0 but for rounding, because it adds the same to all scores of a query.
TEST_CASE("micro-batches change a compressed step by rounding only, if every rank has the same rows",
          "[ranks][onebit]") {
    const auto master = [](int micro_batches, int rotated_rows) {
        return on_ranks<Snapshot>(2, [&](Context& context) {
            Trainer trainer(context, short_setup(2), onebit());
            for (unsigned t = 0; t < kWarmup + 1; ++t) {
                GlobalBatch batch = short_batch(t);
                for (auto* const all : {&batch.tokens, &batch.targets})
                    std::ranges::rotate(*all, all->begin() + rotated_rows * batch.seq_len);
                trainer.step(batch, micro_batches, 1e-2f);
            }
            return snapshot(trainer);
        })[0].master;
    };
    const std::vector<float> want = master(1, 0);
    const auto differ = [&](const std::vector<float>& got) {  // by far less than one element's sign changes them
        const ParameterTable table(kTinyModel);
        std::int64_t count = 0;
        for (const ParameterSpec& spec : table.tensors())
            for (std::int64_t i = 0; i < spec.size(); ++i) {
                const bool key_bias = spec.name.ends_with("attn.c_attn.bias") && i / (spec.size() / 3) == 1;
                const auto at = std::size_t(spec.offset + i);
                count += !key_bias && std::fabs(got[at] - want[at]) > 1e-4f;
            }
        return count;
    };
    CHECK(differ(master(3, 0)) <= 3);  // signs of values within rounding of 0: 0 to 1 of these elements
    CHECK(differ(master(1, 2)) > std::ssize(want) / 200);  // other rows on every rank
}

TEST_CASE("padding rows and unused positions change as with AdamW", "[ranks][onebit]") {
    const ParameterTable table(kTinyModel);
    const auto ranks = on_ranks<std::vector<Snapshot>>(2, [&](Context& context) {
        Trainer trainer(context, short_setup(2), onebit({.freeze_after = 2}));
        std::vector<Snapshot> all;
        for (unsigned t = 0; t < 8; ++t) all.push_back(step_with_gradient(trainer, short_batch(t)));
        return all;
    });
    const Snapshot &first = ranks[0].front(), &last = ranks[0].back();
    const ParameterSpec& tokens = table.tensors()[std::size_t(table.token_table())];
    const ParameterSpec& positions = table.tensors()[std::size_t(table.position_table())];
    REQUIRE(tokens.rows > kTinyModel.vocabulary);
    for (std::int64_t i = tokens.offset + kTinyModel.vocabulary * tokens.columns; i < tokens.offset + tokens.size();
         ++i)
        REQUIRE((last.master[std::size_t(i)] == 0 && last.first[std::size_t(i)] == 0));
    for (std::int64_t i = positions.offset + 8 * positions.columns; i < positions.offset + positions.size(); ++i) {
        float decayed = first.master[std::size_t(i)];
        for (int t = 1; t < 8; ++t) decayed -= 1e-2f * (0.1f * decayed);
        REQUIRE(last.master[std::size_t(i)] == Approx(decayed).epsilon(1e-6));
        for (const auto& rank : ranks)
            REQUIRE((rank.back().first[std::size_t(i)] == 0 && rank.back().errors[std::size_t(i)] == 0));
    }
}

TEST_CASE("a non-finite gradient on one rank does not change the state of any rank", "[ranks][onebit]") {
    const float bad = GENERATE(NAN, INFINITY, 1e38f);  // 1e38 is finite, but its square is not
    if (kThreadSanitizer && !std::isnan(bad)) return;
    CAPTURE(bad);
    check_not_finite(kRanks, 1, bad, onebit());
}

TEST_CASE("a single rank does not compress", "[onebit]") {
    const auto run = [](const OnebitSettings& settings) {
        return on_ranks<Snapshot>(1, [&](Context& context) {
            Trainer trainer(context, short_setup(1), onebit(settings));
            for (unsigned t = 0; t < kWarmup + 2; ++t) trainer.step(short_batch(t), 1, 1e-2f);
            return snapshot(trainer);
        })[0];
    };
    const Snapshot alone = run({.freeze_after = kWarmup});
    CHECK(same_parameters(alone, run({.freeze_after = kWarmup, .frozen_only = true})));
    CHECK(alone.errors.empty());
    CHECK(std::isnan(alone.scalars.largest_update));
}

TEST_CASE("tensors excluded from compression are updated as by AdamW", "[ranks][onebit]") {
    const std::string exclude = GENERATE(std::string("wpe|ln_"), std::string("\\.weight$"));
    const bool bf16 = GENERATE(false, true);
    CAPTURE(exclude, bf16);
    check_excluded(kRanks, {.freeze_after = kWarmup, .exclude = exclude}, bf16);
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

TEST_CASE("a checkpoint has the complete state of 1-bit Adam", "[ranks][onebit]") {
    check_resumes(kRanks, onebit(), GENERATE(1u, unsigned(kWarmup), unsigned(kWarmup) + 2));
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
    in_any_order(GENERATE(2, 4), onebit_run(onebit()));
}

TEST_CASE("1-bit Adam is bit-identical in processes and in threads", "[onebit][mpi]") {
    skip_without_mpi();
    for (const int ranks : {2, 3}) check_case("mpi rank: 1-bit Adam", ranks);
}

TEST_CASE("mpi rank: 1-bit Adam", "[.]") {
    const auto communicator = open_communicator();
    const auto got = on_processes(*communicator)(communicator->size(), onebit_run(onebit()));
    CHECK(same_results(got, on_threads()(communicator->size(), onebit_run(onebit()))));
}
