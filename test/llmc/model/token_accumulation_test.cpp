// token_accumulation_test.cpp - every valid token of a global batch has the same weight, for any number of
// micro-batches
#include <algorithm>
#include <cstring>

#include "test/support/model_support.h"

using namespace llmc;
using namespace test;

TEST_CASE("M micro-batches equal one batch and fp64", "[model][accumulation]") {
    Context context = make_context();
    const int micro_batches = GENERATE(1, 2, 4, 8, 16);
    const unsigned seed = GENERATE(1u, 2u);
    CAPTURE(micro_batches, seed);
    const float max_norm = 0.5f;
    Trainer trainer(context, tiny_setup(), {.max_grad_norm = max_norm}, seed);
    const GlobalBatch batch = random_batch_with_gaps(seed);
    const auto want = reference_gradient(trainer.table(), widen(trainer.master_weights()), batch.reference());
    const double norm_of_want = norm(want.gradient);
    const auto scalars = trainer.step(batch, micro_batches);
    CHECK(scalars.valid_targets == batch.valid_targets());
    CHECK(std::fabs(scalars.loss - want.loss.mean()) <= 1e-6 * want.loss.mean());
    CHECK(largest_error(mean_gradient(trainer, batch), want.gradient) <= 2e-6 * largest_magnitude(want.gradient));
    CHECK(std::fabs(scalars.grad_norm - norm_of_want) <= 1e-6 * norm_of_want);
    CHECK(norm_of_want > max_norm);  // otherwise clipping would not be tested
    CHECK(std::fabs(scalars.clip - max_norm / (norm_of_want + 1e-6)) <= 1e-6);
    // The mean of the micro-batches' means differs, so a trainer that computes it would fail.
    if (micro_batches == 4) {
        double mean_of_means = 0;
        for (int part = 0; part < 4; ++part) {
            GlobalBatch quarter{4, batch.seq_len, {}, {}};
            const auto first = std::ptrdiff_t(part) * 4 * batch.seq_len, last = first + 4 * batch.seq_len;
            quarter.tokens.assign(batch.tokens.begin() + first, batch.tokens.begin() + last);
            quarter.targets.assign(batch.targets.begin() + first, batch.targets.begin() + last);
            const auto loss = reference_loss(trainer.table(), widen(trainer.master_weights()), quarter.reference());
            mean_of_means += loss.valid_targets > 0 ? loss.mean() / 4 : 0;
        }
        CHECK(std::fabs(scalars.loss - mean_of_means) > 1e-3);
    }
}

TEST_CASE("parameters after accumulated steps equal fp64", "[model][accumulation]") {
    Context context = make_context();
    const int micro_batches = GENERATE(1, 4, 16);
    const float max_norm = GENERATE(0.5f, 0.0f);
    CAPTURE(micro_batches, max_norm);
    Trainer trainer(context, tiny_setup(), {.eps = 1e-4f, .max_grad_norm = max_norm});
    std::vector<double> parameters = widen(trainer.master_weights());
    ReferenceAdamW reference{.eps = 1e-4, .max_norm = max_norm};
    for (unsigned step = 0; step < 5; ++step) {
        const GlobalBatch batch = random_batch_with_gaps(step);
        const auto want = reference_gradient(trainer.table(), parameters, batch.reference());
        reference.update(trainer.table(), parameters, want.gradient, 6e-4f);
        CHECK(std::fabs(trainer.step(batch, micro_batches).loss - want.loss.mean()) <= 2e-6 * want.loss.mean());
        if (step == 0) CHECK(largest_error(trainer.master_weights(), parameters) <= 1e-6);
    }
    CHECK(largest_error(trainer.master_weights(), parameters) <= 1e-6);
}

TEST_CASE("a step without targets changes nothing, and the next one updates again", "[model][accumulation]") {
    Context context = make_context();
    Trainer trainer(context, tiny_setup());
    trainer.step(random_batch(1));
    const auto master_weights = trainer.master_weights(), first = trainer.first_moments(),
               second = trainer.second_moments();
    GlobalBatch nothing = random_batch(2);
    std::fill(nothing.targets.begin(), nothing.targets.end(), kernels::kIgnoreTarget);
    const auto skipped = trainer.step(nothing, 4);
    CHECK(skipped.skip == kernels::kSkipNoTargets);
    CHECK(skipped.skipped_steps == 1);
    CHECK(skipped.adam_step == 1);
    CHECK(std::isnan(skipped.loss));
    CHECK(trainer.master_weights() == master_weights);
    CHECK(trainer.first_moments() == first);
    CHECK(trainer.second_moments() == second);
    const auto gradients = trainer.gradients();
    CHECK(std::all_of(gradients.begin(), gradients.end(), [](float g) { return g == 0; }));
    const auto next = trainer.step(random_batch(3));
    CHECK(next.skip == kernels::kNoSkip);
    CHECK(next.adam_step == 2);
    CHECK(trainer.master_weights() != master_weights);
}
