// token_accumulation_test.cpp - steps whose number of micro-batches changes (any number of micro-batches and ranks:
// data_parallel_ranks_test.cpp)
#include "llmc/run/log/step_noise.h"
#include "test/support/model_support.h"

using namespace llmc;
using namespace test;

TEST_CASE("steps of changing size have the loss, gradient, norm and noise of fp64", "[model][accumulation][noise]") {
    Context context = make_context();
    ModelSetup setup = tiny_setup();
    constexpr int kRows = 4;  // of a micro-batch
    setup.shape = {kRows, kTinySeqLen};
    Trainer trainer(context, setup, {}, 1, {.small_batches = SmallBatches::first_micro_batches});
    const auto squares = [](const ReferenceGradient& of) { return norm(of.gradient) * norm(of.gradient); };
    unsigned seed = 0;
    for (const int rows : {8, 16, 8}) {
        CAPTURE(++seed, rows);
        const GlobalBatch batch = random_batch(seed, rows);
        GlobalBatch first = batch;  // its first micro-batch
        first.rows = kRows;
        first.tokens.resize(kRows * kTinySeqLen);
        first.targets.resize(kRows * kTinySeqLen);
        const std::vector<double> weights = widen(trainer.master_weights());
        const auto want = reference_gradient(trainer.table(), weights, batch.reference());
        const auto of_first = reference_gradient(trainer.table(), weights, first.reference());
        CHECK(std::fabs(trainer.loss(first) - of_first.loss.mean()) <= 1e-6 * of_first.loss.mean());
        const auto scalars = trainer.step(batch, rows / kRows);
        CHECK(std::fabs(scalars.loss - want.loss.mean()) <= 1e-6 * want.loss.mean());
        CHECK(largest_error(mean_gradient(trainer, batch), want.gradient) <= 2e-6 * largest_magnitude(want.gradient));
        CHECK(std::fabs(scalars.grad_norm - norm(want.gradient)) <= 1e-6 * norm(want.gradient));
        StepNoise noise(0);  // no memory
        noise.add(trainer.optimizer().totals(), batch.positions());
        const std::int64_t tokens = first.positions();
        const NoiseMeasurement measured = measure_noise(
            {.norms = double(tokens) * squares(of_first), .tokens = tokens, .batches = 1}, squares(want),
            batch.positions());
        const NoiseScale::Estimate estimate = noise.scale().estimate();
        // Norms are accurate to 2e-6; the estimates are differences of norms, weighted by batch sizes.
        const double big = double(batch.positions()), small = double(tokens);
        CHECK(std::fabs(estimate.signal - measured.signal) <=
              4e-6 * (big + small) * squares(of_first) / (big - small));
        CHECK(std::fabs(estimate.noise - measured.noise) <= 4e-6 * 2 * squares(of_first) / (1 / small - 1 / big));
    }
}
