// data_parallel_ranks_test.cpp - ranks x micro-batches: every valid token of the global batch has the same weight, on
// any rank and at every ZeRO stage, also with the head in 8-bit floats
#include "llmc/model/muon.h"
#include "test/support/rank_support.h"

using namespace llmc;
using namespace test;

namespace {

std::vector<GlobalBatch> batches_with_gaps(int count) {
    std::vector<GlobalBatch> batches;
    for (int i = 0; i < count; ++i) batches.push_back(random_batch_with_gaps(unsigned(i)));
    return batches;
}

const MuonSettings kOfMuon{.momentum = 0.9f, .learning_rate_factor = 2, .cautious_decay = true};
const OptimizerSettings kAdam{}, kWithMuon{.kind = &kMuon, .own = kOfMuon};

RankRun run_at(Partition partition, int stage, kernels::DType dtype = kernels::DType::fp32,
               const OptimizerSettings& optimizer = kAdam) {
    RankRun run{.partition = partition, .setup = tiny_setup(dtype), .optimizer = optimizer};
    run.setup.sharding.stage = stage;
    return run;
}

}  // namespace

// Counts, loss, norm, clipping and every gradient of a step.
TEST_CASE("R ranks x M micro-batches equal one batch and fp64", "[ranks]") {
    const Partition partition = GENERATE(Partition{1, 1}, Partition{1, 4}, Partition{2, 2}, Partition{2, 8},
                                         Partition{4, 4}, Partition{4, 1}, Partition{8, 2});
    const ParameterTable table(kTinyModel);
    const float max_norm = 0.5f;
    for (const unsigned seed : {1u, 2u}) {
        if (kThreadSanitizer && seed > 1) break;
        const GlobalBatch batch = random_batch_with_gaps(seed);
        std::optional<int> end_of_text;  // the second batch consists of documents
        if (seed == 2) end_of_text = kTinyModel.vocabulary - 1;
        const auto weights = widen(initial_weights(table, seed));
        const auto want = end_of_text ? reference_of_documents(table, weights, batch, *end_of_text)
                                      : reference_gradient(table, weights, batch.reference());
        const double norm = test::norm(want.gradient);
        REQUIRE(norm > max_norm);  // otherwise clipping would not be tested
        for (const int stage : {0, 1, 2}) {
            CAPTURE(partition.ranks, partition.micro_batches, seed, stage);
            RankRun run = run_at(partition, stage);
            run.seed = seed;
            run.setup.end_of_text = end_of_text;
            run.optimizer.max_grad_norm = max_norm;
            const RunResult got = run_ranks(run, {batch});
            const kernels::StepScalars& step = got.ranks[0].scalars[0];
            CHECK(got.ranks_agree());
            CHECK(step.valid_targets == batch.valid_targets());
            CHECK(std::fabs(step.loss - want.loss.mean()) <= 1e-6 * want.loss.mean());
            CHECK(std::fabs(step.grad_norm - norm) <= 1e-6 * norm);
            CHECK(std::fabs(step.clip - max_norm / (norm + 1e-6)) <= 1e-6);
            const double kappa = double(batch.positions()) / double(batch.valid_targets());
            CHECK(std::fabs(step.grad_scale - kappa * max_norm / (norm + 1e-6)) <= 1e-6 * kappa);
            double largest = 0;
            for (std::size_t i = 0; i < want.gradient.size(); ++i)
                largest = std::max(largest, std::fabs(kappa * got.gradient[i] - want.gradient[i]));
            CHECK(largest <= 2e-6 * largest_magnitude(want.gradient));
        }
    }
}

TEST_CASE("parameters after data-parallel steps equal fp64", "[ranks]") {
    const OptimizerSettings optimizer = GENERATE(kAdam, kWithMuon);
    const Partition partition = GENERATE(Partition{2, 2}, Partition{8, 2});
    const auto batches = batches_with_gaps(5);
    const ParameterTable table(kTinyModel);
    for (const float max_norm : {0.5f, 0.0f}) {
        if (kThreadSanitizer && max_norm == 0) break;
        std::vector<double> parameters = widen(initial_weights(ParameterTable(kTinyModel), 1));
        ReferenceMuon muon{.adamw = {.eps = 1e-4, .max_norm = max_norm}, .momentum = kOfMuon.momentum,
                           .learning_rate_factor = kOfMuon.learning_rate_factor,
                           .cautious_decay = kOfMuon.cautious_decay};
        ReferenceAdamW adamw = muon.adamw;
        for (const GlobalBatch& batch : batches) {
            const auto gradient = reference_gradient(table, parameters, batch.reference()).gradient;
            if (optimizer.kind == &kMuon) muon.update(table, parameters, gradient, 6e-4f);
            else adamw.update(table, parameters, gradient, 6e-4f);
        }
        for (const int stage : {0, 1, 2}) {
            CAPTURE(partition.ranks, partition.micro_batches, max_norm, stage, optimizer.kind->title);
            RankRun run = run_at(partition, stage, kernels::DType::fp32, optimizer);
            run.optimizer.eps = 1e-4f;
            run.optimizer.max_grad_norm = max_norm;
            const RunResult got = run_ranks(run, batches);
            CHECK(got.ranks_agree());
            CHECK(largest_error(got.ranks[0].parameters, parameters) <= 1e-6);
            CHECK(same_bits(got.master_weights, got.ranks[0].parameters));
        }
    }
}

TEST_CASE("ZeRO stage 1 is bit-identical to stage 0, and so is stage 2 with one micro-batch", "[ranks]") {
    const auto dtype = GENERATE(kernels::DType::fp32, kernels::DType::bf16);
    const bool stochastic = GENERATE(false, true), reduce_in_bf16 = GENERATE(false, true);
    if (stochastic && dtype == kernels::DType::fp32) return;
    const OptimizerSettings optimizer = GENERATE(kAdam, kWithMuon);
    const Partition partition = GENERATE(Partition{2, 2}, Partition{3, 1}, Partition{8, 1});
    if (reduce_in_bf16 && partition.ranks > 2) return;  // saves time
    if (kThreadSanitizer && (stochastic != reduce_in_bf16 || partition.ranks == 8)) return;
    CAPTURE(int(dtype), stochastic, reduce_in_bf16, partition.ranks, optimizer.kind->title);
    std::vector<GlobalBatch> batches;
    for (unsigned i = 0; i < 5; ++i) batches.push_back(random_batch(i, partition.ranks == 3 ? 12 : 16));
    const auto run_stage = [&](int stage) {
        RankRun run = run_at(partition, stage, dtype, optimizer);
        run.exchange.reduce_in_bf16 = reduce_in_bf16;
        if (dtype == kernels::DType::fp32) run.setup.end_of_text = kTinyModel.vocabulary - 1;
        if (stochastic) run.optimizer.rounding_seed = 7;
        return run_ranks(run, batches);
    };
    const RunResult zero = run_stage(0), one = run_stage(1), two = run_stage(2);
    CHECK(zero.ranks_agree());
    CHECK(one.ranks_agree());
    CHECK(two.ranks_agree());
    CHECK(!same_bits(zero.master_weights, initial_weights(ParameterTable(kTinyModel), 1)));
    CHECK(same_bits(one.ranks[0].parameters, zero.ranks[0].parameters));
    CHECK(same_bits(one.master_weights, zero.master_weights));
    CHECK(same_bits(one.ranks[0].scalars, zero.ranks[0].scalars));
    if (optimizer.kind != &kMuon)
        CHECK(one.ranks[0].moments.size() <
              zero.ranks[0].moments.size() / std::size_t(partition.ranks) * 11 / 10 + 1024);
    // with more micro-batches the order of the sums differs
    CHECK(same_bits(two.master_weights, zero.master_weights) == (partition.micro_batches == 1));
}

TEST_CASE("results do not depend on the timing of the communication stream", "[ranks]") {
    const int stage = GENERATE(0, 1, 2);
    const auto dtype = GENERATE(kernels::DType::fp32, kernels::DType::bf16);
    const bool reduce_in_bf16 = GENERATE(false, true);
    const OptimizerSettings optimizer = GENERATE(kAdam, kWithMuon);
    if ((kThreadSanitizer || optimizer.kind == &kMuon) && reduce_in_bf16 != (dtype == kernels::DType::bf16)) return;
    CAPTURE(stage, int(dtype), reduce_in_bf16, optimizer.kind->title);
    const auto batches = batches_with_gaps(3);
    const auto run_order = [&](LocalSettings local) {
        RankRun run = run_at({2, 2}, stage, dtype, optimizer);
        run.setup.config.layers = 4;  // stage 2 reuses its working buffers
        run.exchange.reduce_in_bf16 = reduce_in_bf16;
        run.exchange.small_batches = stage == 2 ? SmallBatches::micro_batches : SmallBatches::ranks;
        run.local = local;
        return run_ranks(run, batches);
    };
    const RunResult want = run_order({});
    CHECK(std::isfinite(want.ranks[0].scalars[2].loss));
    for (const LocalSettings& local :
         {LocalSettings{.order = LocalOrder::late}, LocalSettings{.order = LocalOrder::early},
          LocalSettings{.delay = std::chrono::microseconds(500), .seed = 3}}) {
        CAPTURE(int(local.order));
        const RunResult got = run_order(local);
        CHECK(got.ranks_agree());
        CHECK(same_bits(got.master_weights, want.master_weights));
        CHECK(same_bits(got.ranks[1].parameters, want.ranks[1].parameters));
        CHECK(same_bits(got.ranks[1].totals, want.ranks[1].totals));
    }
}

TEST_CASE("gradients reduced in bf16 are rounded once before the reduction and once as a sum", "[ranks]") {
    const int stage = GENERATE(0, 1, 2), micro_batches = GENERATE(1, 2);
    CAPTURE(stage, micro_batches);
    // Both ranks compute the same gradient g: the sum is exactly 2 round(g). So do both micro-batches, which at stage 2
    // are reduced one by one.
    const GlobalBatch batch = repeated(random_batch(1, 4), 4);
    RankRun run = run_at({2, micro_batches}, stage);
    const auto exact = run_ranks(run, {batch}).gradient;
    run.exchange.reduce_in_bf16 = true;
    const auto rounded = run_ranks(run, {batch}).gradient;
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < exact.size(); ++i)
        wrong += rounded[i] != 2 * kernels::bf16_to_float(kernels::bf16_from_float(exact[i] / 2));
    CHECK(wrong == 0);
    CHECK(!same_bits(exact, rounded));
}

TEST_CASE("reduced gradients are bit-identical with and without norms of small batches", "[ranks]") {
    const int stage = GENERATE(0, 1, 2), micro_batches = GENERATE(1, 2);
    const auto small_batches = GENERATE(SmallBatches::ranks, SmallBatches::first_micro_batches,
                                        SmallBatches::micro_batches);
    if ((small_batches == SmallBatches::micro_batches) != (stage == 2)) return;
    CAPTURE(stage, micro_batches, int(small_batches));
    RankRun run = run_at({2, micro_batches}, stage);
    run.setup.config.layers = 4;  // stage 2 reuses its working buffers
    const auto run_with = [&](bool reduce_in_bf16, SmallBatches small) {
        run.exchange.reduce_in_bf16 = reduce_in_bf16;
        run.exchange.small_batches = small;
        return run_ranks(run, batches_with_gaps(2));
    };
    const RunResult with = run_with(true, small_batches), without = run_with(true, SmallBatches::none),
                    exact = run_with(false, small_batches);
    CHECK(same_bits(with.gradient, without.gradient));
    CHECK(same_bits(with.master_weights, without.master_weights));
    // The norms are of the values before rounding: in the first step they do not depend on the type of the reduction.
    const double norms = with.ranks[0].totals[0].small_norms;
    CHECK(norms == exact.ranks[0].totals[0].small_norms);
    CHECK(norms > 0);
}

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
            RankRun run = run_at(partition, stage, kernels::DType::bf16);
            run.setup.fp8 = fp8;
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
