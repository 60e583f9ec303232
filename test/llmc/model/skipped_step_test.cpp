// skipped_step_test.cpp - steps without an update: no targets, or a non-finite gradient, also if only on one rank
#include <algorithm>

#include "llmc/model/muon.h"
#include "test/support/rank_support.h"
#include "test/support/run_support.h"

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

OptimizerSettings optimizer_with(bool muon, double max_norm_z = 0) {
    return {.max_norm_z = max_norm_z, .kind = muon ? &kMuon : &kAdamW, .own = MuonSettings{}};
}

}  // namespace

TEST_CASE("a step without targets is skipped, reported and counted, and the run continues", "[run]") {
    const TrainingFolder folder;
    constexpr int kPositions = 128, kSkipped = 8;
    std::mt19937 engine(1);
    std::vector<std::uint16_t> ids;
    for (int i = 0; i <= 12 * kPositions; ++i) ids.push_back(std::uint16_t('a' + engine() % 20));
    // ends of text, so that the next tokens are masked
    std::fill_n(ids.begin() + kSkipped * kPositions, kPositions, std::uint16_t(256));
    ShardBytes(ids, 257, 256).write(folder.path("train_0.bin"));
    const std::string output = folder.train({"-d", "128", "-x", "12", "-v", "0", "--mask-document-start", "-o",
                                             folder.path("out")});
    const auto steps = folder.log("out", "step"), skips = folder.log("out", "skip");
    REQUIRE(steps.size() == 12);
    const auto& skipped = steps[kSkipped];
    CHECK(skipped["valid_tokens"] == 0);
    for (const char* unknown : {"loss", "grad_norm", "noise_scale_seq"}) CHECK(skipped[unknown].is_null());
    CHECK(steps[kSkipped + 1]["loss"].is_number());
    REQUIRE(skips.size() == 1);
    CHECK(skips[0]["step"] == kSkipped + 1);
    CHECK(skips[0]["skipped_steps"] == 1);
    CHECK_THAT(output, Contains("step 9/12  | update skipped: no targets (1 so far)"));
    // The noise scale is known in tokens, but not in sequences for a step without valid tokens.
    CHECK(skipped["noise_scale_tokens"].is_number());
    const auto line = output.substr(output.find("step 9/12  |     nan "));
    CHECK_THAT(line.substr(0, line.find('\n')), EndsWith("   n/a"));
}

TEST_CASE("a non-finite gradient on one rank skips the step on all", "[ranks]") {
    const int stage = GENERATE(0, 1, 2);
    const auto dtype = GENERATE(kernels::DType::fp32, kernels::DType::bf16);
    const bool muon = GENERATE(false, true);
    CAPTURE(stage, int(dtype), muon);
    const GlobalBatch batch = random_batch(1);
    ModelSetup setup = tiny_setup(dtype);
    setup.sharding.stage = stage;
    struct Rank {
        std::vector<float> before, after;  // state_of()
        kernels::StepScalars bad, next;
    };
    std::vector<Rank> ranks(2);
    llmc::run_ranks(2, [&](Communicator& communicator) {
        Context context = make_context(communicator);
        Trainer trainer(context, setup, optimizer_with(muon));
        Rank& mine = ranks[std::size_t(communicator.rank())];
        trainer.step(batch);
        mine.before = state_of(trainer);
        mine.bad = trainer.step(batch, 1, 6e-4f, communicator.rank() == 1 ? INFINITY : 1.0f);
        mine.after = state_of(trainer);
        mine.next = trainer.step(batch);
    });
    for (const Rank& rank : ranks) {
        CHECK(rank.bad.skip == kernels::kSkipNonFinite);
        CHECK(rank.bad.skipped_steps == 1);
        CHECK(rank.bad.adam_step == 1);
        CHECK(same_bits(rank.after, rank.before));
        CHECK(rank.next.skip == kernels::kNoSkip);
        CHECK(rank.next.adam_step == 2);
    }
}

TEST_CASE("an outlier on a single rank skips the step on all, without any change", "[ranks]") {
    const int stage = GENERATE(0, 1, 2);
    const bool muon = GENERATE(false, true);
    CAPTURE(stage, muon);
    const GlobalBatch batch = random_batch(1);
    ModelSetup setup = tiny_setup(stage == 2 ? kernels::DType::bf16 : kernels::DType::fp32);
    setup.sharding.stage = stage;
    struct Rank {
        std::vector<float> before, after;  // state_of()
        OptimizerCounts counts_before, counts_after;
        kernels::StepScalars full, bad, next;
    };
    std::vector<Rank> ranks(2);
    llmc::run_ranks(2, [&](Communicator& communicator) {
        Context context = make_context(communicator);
        Trainer trainer(context, setup, optimizer_with(muon, 6));
        Rank& mine = ranks[std::size_t(communicator.rank())];
        const kernels::StepScalars usual = trainer.step(batch);
        OptimizerCounts counts{.updates = 129, .losses = std::vector<double>(128, usual.loss)};
        for (int i = 0; i < 128; ++i) counts.norms.push_back((i % 2 ? 1.0 : 1.1) * usual.grad_norm);
        trainer.load_counts(counts);
        mine.full = trainer.step(batch);
        mine.before = state_of(trainer);
        mine.counts_before = trainer.optimizer().counts();
        mine.bad = trainer.step(batch, 1, 6e-4f, communicator.rank() == 1 ? 100.0f : 1.0f);
        mine.after = state_of(trainer);
        mine.counts_after = trainer.optimizer().counts();
        mine.next = trainer.step(batch);
    });
    for (Rank& rank : ranks) {
        CHECK(rank.full.skip == kernels::kNoSkip);
        CHECK(std::isfinite(rank.full.norm_z));
        CHECK(rank.bad.skip == kernels::kSkipOutlier);
        CHECK(rank.bad.adam_step == 130);
        CHECK(same_bits(rank.after, rank.before));
        CHECK(rank.counts_before.losses.size() == 128);
        rank.counts_before.skipped_steps += 1;
        CHECK(rank.counts_after == rank.counts_before);
        CHECK(rank.counts_after == ranks[0].counts_after);
        CHECK(same_bits(std::vector{rank.bad, rank.next}, std::vector{ranks[0].bad, ranks[0].next}));
        CHECK(rank.next.skip == kernels::kNoSkip);
        CHECK(rank.next.adam_step == 131);
    }
}
