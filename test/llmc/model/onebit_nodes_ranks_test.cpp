// onebit_nodes_ranks_test.cpp - 1-bit Adam with nodes of another number or size as workers: one rank, one node, values
// that only some ranks see, checkpoints of other nodes
#include "test/support/onebit_support.h"

using namespace llmc;
using namespace test;

namespace {

constexpr int kNodes = 2, kRanksOfNode = 2, kAllRanks = kNodes * kRanksOfNode;

// Settings for nodes of `ranks_per_node` ranks.
OptimizerSettings of_nodes(OnebitSettings settings = {.freeze_after = kWarmup}, int ranks_per_node = kRanksOfNode) {
    settings.ranks_per_node = ranks_per_node;
    return onebit(settings);
}
LocalSettings on_nodes(int ranks_per_node = kRanksOfNode, LocalSettings local = {}) {
    local.ranks_per_node = ranks_per_node;
    return local;
}

}  // namespace

TEST_CASE("nodes of one rank behave like ranks, and a single node does not compress", "[ranks][onebit]") {
    const auto run = [](int ranks_per_node, const OnebitSettings& settings) {
        return on_ranks<RankResult>(4, [&](Context& context) {
            return onebit_run(of_nodes(settings, llmc::ranks_per_node(nodes_of(*context.world))))(context);
        }, on_nodes(ranks_per_node));
    };
    const OnebitSettings plain{.freeze_after = kWarmup};
    CHECK(same_results(run(1, plain), on_ranks<RankResult>(4, onebit_run(onebit(plain)))));
    const auto one_node = run(4, plain);
    CHECK(same_results(one_node, run(1, {.freeze_after = kWarmup, .frozen_only = true})));
    CHECK(one_node[0].moments.empty());
    CHECK(!same_bits(one_node[0].parameters, run(2, plain)[0].parameters));
}

// Only the ranks with one local rank see it: the norm's estimate and the gradient are finite, the compensated value is
// not.
TEST_CASE("non-finite compensated values on one local rank skip the step on all ranks", "[ranks][onebit]") {
    const auto ranks = on_ranks<std::vector<Snapshot>>(kAllRanks, [&](Context& context) {
        Trainer trainer(context, short_setup(kAllRanks), of_nodes());
        std::vector<Snapshot> all;
        for (unsigned t = 0; t < kWarmup + 2; ++t) {
            if (t == kWarmup + 1 && context.world->rank() == 2) {
                std::vector<float> errors = all.back().errors;
                errors[0] = 3e38f;
                trainer.write_state(trainer.state_file("onebit"), errors);
            }
            all.push_back(step_with_gradient(trainer, short_batch(t)));
        }
        return all;
    }, on_nodes());
    for (std::size_t rank = 0; rank < kAllRanks; ++rank) {
        const Snapshot &before = ranks[rank][kWarmup], &skipped = ranks[rank][kWarmup + 1];
        CHECK(skipped.scalars.skip == kernels::kSkipNonFinite);
        CHECK(same_parameters(skipped, before));
        if (rank != 2) CHECK(same_bits(skipped.errors, before.errors));
    }
}

TEST_CASE("other nodes resume with the pending errors, or print that they start at 0", "[ranks][onebit]") {
    struct Case {
        int ranks, ranks_per_node;
        const char* note;
    };
    constexpr int kWere = 6, kOnNodeWere = 3;
    const Case now = GENERATE(Case{4, 2, "optimizer state onebit: 4 ranks instead of 6: each starts with the mean of "},
                              Case{6, 2, "optimizer state onebit: 6 ranks grouped otherwise: each starts with the "},
                              Case{6, 3, "optimizer state onebit: 6 ranks grouped otherwise: each starts with the "},
                              Case{6, 1, "optimizer state onebit: starts at 0, because the checkpoint's is for "});
    CAPTURE(now.ranks, now.ranks_per_node);
    const ScratchFolder folder;
    const auto elements = std::size_t(ParameterTable(kTinyModel).elements());
    const auto were = on_ranks<Snapshot>(kWere, [&](Context& context) {
        const int rank = context.world->rank();
        Trainer trainer(context, short_setup(kWere), of_nodes({.freeze_after = kWarmup}, kOnNodeWere));
        for (unsigned t = 0; t < kWarmup + 2; ++t) trainer.step(short_batch(t), 1, 1e-2f);
        const Snapshot then = snapshot(trainer);
        StateFile file = trainer.state_file("onebit");
        std::erase_if(file.marks, [](const StateFile::Mark& mark) { return mark.key == "shards"; });  // as in 0.3.0
        write_state(folder / state_file_name("onebit", rank, kWere), file, then.errors);
        return then;
    }, on_nodes(kOnNodeWere));
    std::vector<std::string> notes(std::size_t(now.ranks));
    const auto are = on_ranks<Snapshot>(now.ranks, [&](Context& context) {
        const int rank = context.world->rank();
        Trainer trainer(context, short_setup(now.ranks), of_nodes({.freeze_after = kWarmup}, now.ranks_per_node));
        trainer.step(short_batch(0), 1, 0);  // scalars for the snapshot
        notes[std::size_t(rank)] = load_from(trainer, were[0], folder, kWere, *context.world);
        return snapshot(trainer);
    }, on_nodes(now.ranks_per_node));
    for (const std::string& note : notes) CHECK_THAT(note, Contains(now.note));
    const Pending then = pending_by(were, elements, kWere / kOnNodeWere),
               left = pending_by(are, elements, now.ranks / now.ranks_per_node);
    std::size_t wrong = 0, nonzero = 0;
    for (std::size_t i = 0; i < elements; ++i) {
        const bool zero = now.ranks_per_node == 1;
        wrong += std::fabs(left.workers[i] - (zero ? 0 : then.workers[i])) > 1e-7 * std::fabs(then.workers[i]);
        wrong += left.servers[i] != (zero ? 0 : then.servers[i]);
        nonzero += then.workers[i] != 0;
    }
    CHECK(wrong == 0);
    CHECK(nonzero > elements / 2);
}
