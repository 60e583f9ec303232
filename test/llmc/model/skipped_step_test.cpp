// skipped_step_test.cpp - steps without an update because of a non-finite gradient or an outlier on one rank
#include "llmc/model/muon.h"
#include "test/support/rank_support.h"

using namespace llmc;
using namespace test;

namespace {

// Master weights and the optimizer's state.
std::vector<float> state_of(const Trainer& trainer) {
    std::vector<float> all = trainer.master_weights();
    for (const StateFile& file : trainer.optimizer().optimizer().state()) {
        const std::vector<float> values = trainer.read_state(file);
        all.insert(all.end(), values.begin(), values.end());
    }
    return all;
}

}  // namespace

TEST_CASE("a gradient that is not finite or an outlier on one rank skips the step on all, without any change",
          "[ranks]") {
    const int stage = GENERATE(0, 1, 2);
    const auto dtype = GENERATE(kernels::DType::fp32, kernels::DType::bf16);
    const bool muon = GENERATE(false, true), outlier = GENERATE(false, true);
    CAPTURE(stage, int(dtype), muon, outlier);
    const GlobalBatch batch = random_batch(1);
    ModelSetup setup = tiny_setup(dtype);
    setup.sharding.stage = stage;
    struct Rank {
        std::vector<float> before, after;  // state_of()
        OptimizerCounts counts_before, counts_after;
        kernels::StepScalars full, bad, next;
    };
    auto ranks = on_ranks<Rank>(2, [&](Context& context) {
        Trainer trainer(context, setup, {.max_norm_z = outlier ? 6.0 : 0.0, .kind = muon ? &kMuon : &kAdamW,
                                         .own = MuonSettings{}});
        Rank mine;
        const kernels::StepScalars usual = trainer.step(batch);
        OptimizerCounts counts{.updates = 129, .losses = std::vector<double>(128, usual.loss)};
        for (int i = 0; i < 128; ++i) counts.norms.push_back((i % 2 ? 1.0 : 1.1) * usual.grad_norm);
        if (outlier) trainer.load_counts(counts);
        mine.full = trainer.step(batch);
        mine.before = state_of(trainer);
        mine.counts_before = trainer.optimizer().counts();
        mine.bad = trainer.step(batch, 1, 6e-4f, context.world->rank() != 1 ? 1.0f : outlier ? 100.0f : INFINITY);
        mine.after = state_of(trainer);
        mine.counts_after = trainer.optimizer().counts();
        mine.next = trainer.step(batch);
        return mine;
    });
    for (Rank& rank : ranks) {
        CHECK(rank.full.skip == kernels::kNoSkip);
        CHECK(std::isfinite(rank.full.norm_z) == outlier);
        CHECK(rank.bad.skip == (outlier ? kernels::kSkipOutlier : kernels::kSkipNonFinite));
        CHECK(rank.bad.adam_step == (outlier ? 130 : 2));
        CHECK(same_bits(rank.after, rank.before));
        CHECK(rank.counts_before.losses.size() == (outlier ? 128 : 2));
        rank.counts_before.skipped_steps += 1;
        CHECK(rank.counts_after == rank.counts_before);
        CHECK(rank.counts_after == ranks[0].counts_after);
        CHECK(same_bits(std::vector{rank.bad, rank.next}, std::vector{ranks[0].bad, ranks[0].next}));
        CHECK(rank.next.skip == kernels::kNoSkip);
        CHECK(rank.next.adam_step == rank.bad.adam_step + 1);
    }
}
