// noise_scale_ranks_test.cpp - the measured noise scale against fp64 gradients of every small batch, also in steps
// whose number of micro-batches changes
#include "llmc/run/log/noise_scale.h"
#include "test/support/rank_support.h"

using namespace llmc;
using namespace test;

namespace {

// Of one step.
NoiseScale::Estimate measure(const kernels::RankSums& totals, const GlobalBatch& batch) {
    StepNoise noise(0);  // no memory
    noise.add(totals, batch.positions());
    return noise.scale().estimate();
}

double squares(const ReferenceGradient& of) { return norm(of.gradient) * norm(of.gradient); }

// Norms are accurate to 2e-6; the estimates are differences of norms, weighted by batch sizes.
void check_estimate(const NoiseScale::Estimate& got, const SmallBatchNorms& norms, double norm_of_all,
                    std::int64_t tokens) {
    const NoiseMeasurement want = measure_noise(norms, norm_of_all, tokens);
    const double small = double(norms.tokens) / double(norms.batches), big = double(tokens),
                 most = std::max(norms.norms / double(norms.tokens), norm_of_all);
    CHECK(std::fabs(got.signal - want.signal) <= 4e-6 * (big + small) * most / (big - small));
    CHECK(std::fabs(got.noise - want.noise) <= 4e-6 * 2 * most / (1 / small - 1 / big));
}

RankRun run_with(Partition partition, SmallBatches small) {
    RankRun run{.partition = partition};
    run.setup.sharding.stage = small == SmallBatches::micro_batches ? 2 : 0;
    run.exchange.small_batches = small;
    return run;
}

GlobalBatch rows_of(const GlobalBatch& batch, int first, int count) {
    const auto cut = [&](const std::vector<int>& all) {
        return std::vector<int>(all.begin() + first * batch.seq_len, all.begin() + (first + count) * batch.seq_len);
    };
    return {count, batch.seq_len, cut(batch.tokens), cut(batch.targets)};
}

}  // namespace

TEST_CASE("the noise scale of a step equals that of fp64 gradients", "[ranks][noise]") {
    const auto small = GENERATE(SmallBatches::ranks, SmallBatches::first_micro_batches, SmallBatches::micro_batches);
    const Partition partition = GENERATE(Partition{2, 4}, Partition{4, 2});
    CAPTURE(int(small), partition.ranks);
    const GlobalBatch batch = random_batch_with_gaps(3);
    const RunResult run = run_ranks(run_with(partition, small), {batch});
    const ParameterTable table(kTinyModel);
    const std::vector<double> weights = widen(initial_weights(table, 1));
    const auto reference = [&](const GlobalBatch& of) { return reference_gradient(table, weights, of.reference()); };
    const int of_rank = batch.rows / partition.ranks, of_micro = of_rank / partition.micro_batches;
    SmallBatchNorms norms;
    for (int rank = 0; rank < partition.ranks; ++rank)
        for (int micro = 0; micro < (small == SmallBatches::micro_batches ? partition.micro_batches : 1); ++micro) {
            const ReferenceGradient part = reference(rows_of(batch, rank * of_rank + micro * of_micro,
                                                             small == SmallBatches::ranks ? of_rank : of_micro));
            const std::int64_t tokens = part.loss.valid_targets;
            if (tokens == 0) continue;
            // sum over tokens, divided by their number
            norms.norms += squares(part) * double(tokens);
            norms.tokens += tokens;
            ++norms.batches;
        }
    check_estimate(measure(run.ranks[0].totals.back(), batch), norms, squares(reference(batch)),
                   batch.valid_targets());
}

TEST_CASE("a step with all targets on one rank, or without targets, measures nothing", "[ranks][noise]") {
    GlobalBatch batch = random_batch(1);
    std::fill(batch.targets.begin() + 128, batch.targets.end(), kernels::kIgnoreTarget);
    const RunResult run = run_ranks(run_with({2, 1}, SmallBatches::ranks), {batch});
    CHECK(run.ranks[0].totals[0].small_batches == 1);
    const NoiseScale::Estimate estimate = measure(run.ranks[0].totals.back(), batch);
    CHECK(estimate.state == NoiseScale::State::invalid);
    CHECK(std::isnan(estimate.signal));
}

TEST_CASE("steps of changing size have the loss, gradient, norm and noise of fp64", "[model][accumulation][noise]") {
    Context context{device::open(1), device::Stream(), kernels::Matmul()};  // as a rank
    ModelSetup setup = tiny_setup();
    constexpr int kRows = 4;  // of a micro-batch
    setup.shape = {kRows, kTinySeqLen};
    Trainer trainer(context, setup, {}, 1, {.small_batches = SmallBatches::first_micro_batches});
    unsigned seed = 0;
    for (const int rows : {8, 16, 8}) {
        CAPTURE(++seed, rows);
        const GlobalBatch batch = random_batch(seed, rows);
        const GlobalBatch first = rows_of(batch, 0, kRows);  // its first micro-batch
        const std::vector<double> weights = widen(trainer.master_weights());
        const auto want = reference_gradient(trainer.table(), weights, batch.reference());
        const auto of_first = reference_gradient(trainer.table(), weights, first.reference());
        CHECK(std::fabs(trainer.loss(first) - of_first.loss.mean()) <= 1e-6 * of_first.loss.mean());
        const auto scalars = check_step(trainer, batch, rows / kRows, want);
        CHECK(std::fabs(scalars.grad_norm - norm(want.gradient)) <= 1e-6 * norm(want.gradient));
        check_estimate(measure(trainer.optimizer().totals(), batch),
                       {.norms = double(first.positions()) * squares(of_first), .tokens = first.positions(),
                        .batches = 1}, squares(want), batch.positions());
    }
}

TEST_CASE("--noise-scale selects the small batches of a run", "[ranks][noise]") {
    const auto chosen = [](const char* asked, int stage, int ranks, int micro) {
        return choose_noise_estimator(value_by_name("--noise-scale", asked, kNoiseEstimators), stage, ranks, micro);
    };
    const auto choose = [&](const char* asked, int stage, int ranks, int micro) {
        return chosen(asked, stage, ranks, micro).small_batches;
    };
    CHECK(choose("off", 0, 8, 8) == SmallBatches::none);
    CHECK(choose("auto", 0, 2, 1) == SmallBatches::ranks);
    CHECK(choose("auto", 1, 2, 4) == SmallBatches::ranks);
    CHECK(choose("auto", 0, 1, 2) == SmallBatches::first_micro_batches);
    CHECK(choose("auto", 2, 2, 1) == SmallBatches::micro_batches);
    CHECK(choose("auto", 2, 1, 1) == SmallBatches::none);
    CHECK(choose("micro", 1, 4, 2) == SmallBatches::first_micro_batches);
    CHECK(choose("micro", 2, 4, 1) == SmallBatches::micro_batches);
    CHECK(chosen("auto", 0, 1, 1).note ==
          "noise scale: off, because 1 rank with 1 micro-batch per step has nothing to compare");
    CHECK(chosen("auto", 0, 2, 1).note.empty());
    CHECK(name_of(choose("auto", 0, 2, 1)) == std::string("rank"));
    CHECK(name_of(choose("auto", 0, 1, 2)) == std::string("micro"));
    CHECK(name_of(choose("auto", 2, 2, 1)) == std::string("micro"));
    CHECK_THROWS_WITH(choose("rank", 0, 1, 4),
                      Contains("--noise-scale is rank with one rank; expected at least two ranks"));
    CHECK_THROWS_WITH(choose("rank", 2, 4, 4),
                      Contains("--noise-scale is rank at --zero-stage 2; expected auto"));
    CHECK_THROWS_WITH(
        choose("micro", 0, 4, 1),
        test::Contains(
            "--noise-scale is micro for 4 ranks with 1 micro-batch per step; expected at least two micro-batches"));
}
