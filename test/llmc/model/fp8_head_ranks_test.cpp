// fp8_head_ranks_test.cpp - whole models with the head in 8-bit floats against fp64 with the same roundings, on any
// ranks and micro-batches
#include "test/support/rank_support.h"

using namespace llmc;
using namespace test;

// bf16 activations differ from fp64, so some 8-bit floats are rounded to a neighbour; but the result is much closer to
// the fp64 model with these roundings than to the one without. The second step has the weights of an update.
TEST_CASE("training with an fp8 head equals fp64 with its roundings, on any ranks and micro-batches", "[ranks][fp8]") {
    const Fp8 fp8 = GENERATE(Fp8::head_backward, Fp8::head);
    const ParameterTable table(kTinyModel);
    const GlobalBatch first = random_batch(1, 12);
    GlobalBatch second = random_batch(2, 12);
    for (int& target : std::span(second.targets).subspan(40, 50)) target = kernels::kIgnoreTarget;
    const double kappa = double(second.positions()) / double(second.valid_targets());
    std::vector<double> of_one_rank;
    double loss_of_one_rank = 0;
    for (const Partition partition : {Partition{1, 1}, Partition{1, 4}, Partition{2, 3}, Partition{3, 1}})
        for (const int stage : {0, 1, 2}) {
            if ((partition.ranks == 1 || kThreadSanitizer) && stage > 0) continue;
            CAPTURE(int(fp8), partition.ranks, partition.micro_batches, stage);
            RankRun run{.partition = partition, .setup = tiny_setup(kernels::DType::bf16)};
            run.setup.fp8 = fp8;
            run.setup.sharding.stage = stage;
            const RunResult before = run_ranks(run, {first}), got = run_ranks(run, {first, second});
            const std::vector<double> weights = widen(before.ranks[0].parameters);
            const auto want = reference_gradient(table, weights, second.reference(), fp8),
                       plain = reference_gradient(table, weights, second.reference());
            const double loss = got.ranks[0].scalars[1].loss;
            CHECK(got.ranks_agree());
            CHECK(std::fabs(loss - want.loss.mean()) <= 1e-4);
            CHECK(relative_error(got.gradient, kappa, want.gradient) <=
                  0.25 * relative_error(got.gradient, kappa, plain.gradient));
            if (of_one_rank.empty()) of_one_rank = widen(got.gradient), loss_of_one_rank = loss;
            const double close = device::is_gpu() ? 1e-2 : 1e-6;  // products of other shapes round differently
            CHECK(std::fabs(loss - loss_of_one_rank) <= close * loss);
            CHECK(relative_error(got.gradient, 1, of_one_rank) <= close);
        }
}
