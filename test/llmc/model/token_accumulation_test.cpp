// token_accumulation_test.cpp - every valid token of a global batch has the same weight, for any number of
// micro-batches

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
    CHECK(std::fabs(trainer.loss(batch) - want.loss.mean()) <= 1e-6 * want.loss.mean());
    const auto scalars = trainer.step(batch, micro_batches);
    CHECK(scalars.valid_targets == batch.valid_targets());
    CHECK(std::fabs(scalars.loss - want.loss.mean()) <= 1e-6 * want.loss.mean());
    CHECK(largest_error(mean_gradient(trainer, batch), want.gradient) <= 2e-6 * largest_magnitude(want.gradient));
    CHECK(std::fabs(scalars.grad_norm - norm_of_want) <= 1e-6 * norm_of_want);
    CHECK(norm_of_want > max_norm);  // otherwise clipping would not be tested
    CHECK(std::fabs(scalars.clip - max_norm / (norm_of_want + 1e-6)) <= 1e-6);
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
