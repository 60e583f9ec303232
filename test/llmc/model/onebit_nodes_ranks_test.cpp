// onebit_nodes_ranks_test.cpp - 1-bit Adam with nodes as workers: the formulas applied to the nodes' sums,
// bit-identical results on all ranks and in any order of arrival, skipped steps, and checkpoints of the same and of
// other nodes
#include "llmc/model/onebit_adam.h"

#include <algorithm>

#include "test/support/onebit_support.h"
#include "test/support/processes.h"

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

TEST_CASE("a step compressed between nodes equals the formulas applied to the nodes' sums", "[ranks][onebit]") {
    const OnebitSpace space = GENERATE(OnebitSpace::momentum, OnebitSpace::update);
    const OnebitScale scale = GENERATE(OnebitScale::bucket, OnebitScale::tensor, OnebitScale::block);
    if (kThreadSanitizer && (space != OnebitSpace::update || scale != OnebitScale::bucket)) return;
    CAPTURE(int(space), int(scale));
    const auto steps = on_ranks<std::vector<Snapshot>>(kAllRanks, [&](Context& context) {
        Trainer trainer(context, short_setup(kAllRanks), of_nodes({.freeze_after = kWarmup, .scale = scale,
                                                                   .space = space}));
        std::vector<Snapshot> all;
        for (unsigned t = 0; t < kWarmup + 3; ++t) all.push_back(step_with_gradient(trainer, short_batch(t)));
        return all;
    }, on_nodes());
    const OptimizerSettings adamw;
    const auto elements = std::size_t(ParameterTable(kTinyModel).elements());
    for (std::size_t t = kWarmup; t < kWarmup + 3; ++t) {
        CAPTURE(t);
        const Snapshot &before = steps[0][t - 1], &after = steps[0][t];
        const kernels::StepScalars& scalars = after.scalars;
        REQUIRE(scalars.skip == kernels::kNoSkip);
        for (int rank = 1; rank < kAllRanks; ++rank) CHECK(same_parameters(steps[std::size_t(rank)][t], after));
        const auto unit = [&](std::size_t i) {
            return space == OnebitSpace::update ? std::sqrt(before.second[i]) + adamw.eps : 1.0f;
        };
        // A node sums its ranks in rank order; a rank compresses its shard of every bucket.
        for (std::size_t rank = 0; rank < kAllRanks; ++rank) {
            const auto& mine = steps[rank];
            const std::size_t first = rank / kRanksOfNode * kRanksOfNode;
            REQUIRE(mine[t].worked.size() > 1);
            REQUIRE(size_of(mine[t].worked) * 2 < std::int64_t(elements) + 2000);
            std::vector<float> left(elements);
            for_ranges(mine[t].worked, mine[t].errors.data(), [&](std::size_t i, float error) { left[i] = error; });
            const float weight = (1 - adamw.beta1) * float(kNodes) * scalars.grad_scale;
            std::size_t wrong = 0, place = 0;
            for (const ElementRange& range : mine[t].worked) {
                double squares = 0, active = 0;
                std::vector<float> z;
                for (auto i = std::size_t(range.first); i < std::size_t(range.first + range.size); ++i, ++place) {
                    const float sum = steps[first][t].gradient[i] + steps[first + 1][t].gradient[i];
                    const float was = t == kWarmup ? 0.0f : mine[t - 1].errors[place];
                    z.push_back((adamw.beta1 * before.first[i] + weight * sum) / unit(i) + was);
                    if (before.second[i] == 0) continue;
                    squares += double(z.back()) * double(z.back());
                    ++active;
                }
                const double a = std::sqrt(squares / active);
                for (std::size_t i = 0; i < z.size(); ++i) {
                    const float error = left[std::size_t(range.first) + i];
                    if (before.second[std::size_t(range.first) + i] == 0) wrong += error != 0;
                    else if (scale == OnebitScale::bucket)  // other scales are per group
                        wrong += std::fabs(std::fabs(double(z[i]) - double(error)) - a) > 1e-5 * a;
                }
            }
            CHECK(wrong == 0);
        }
        check_conserved(steps, t, kNodes, space);
    }
}

TEST_CASE("1-bit Adam of nodes is bit-identical in every order of arrival", "[ranks][onebit]") {
    const bool bf16 = GENERATE(false, true);
    const GradientExchange::Settings exchange{.reduce_in_bf16 = bf16};
    const RankBody body = onebit_run(of_nodes(), exchange);
    const auto want = in_any_order(kAllRanks, body, kRanksOfNode);
    for (const RankResult& rank : want) {
        CHECK(same_bits(rank.parameters, want[0].parameters));
        CHECK(rank.scalars.back().skip == kernels::kNoSkip);
    }
    CHECK(!same_bits(want[0].moments, want[1].moments));
}

TEST_CASE("nodes of one rank behave like ranks, and a single node does not compress", "[ranks][onebit]") {
    const auto run = [](int ranks_per_node, const OnebitSettings& settings) {
        return on_threads(on_nodes(ranks_per_node))(4, [&](Communicator& communicator) {
            return onebit_run(of_nodes(settings, llmc::ranks_per_node(nodes_of(communicator))))(communicator);
        });
    };
    const OnebitSettings plain{.freeze_after = kWarmup};
    CHECK(same_results(run(1, plain), on_threads()(4, onebit_run(onebit(plain)))));
    const auto one_node = run(4, plain);
    CHECK(same_results(one_node, run(1, {.freeze_after = kWarmup, .frozen_only = true})));
    CHECK(one_node[0].moments.empty());
    CHECK(!same_bits(one_node[0].parameters, run(2, plain)[0].parameters));
}

TEST_CASE("a non-finite gradient on one rank does not change the state of any node", "[ranks][onebit]") {
    const float bad = GENERATE(NAN, 1e38f);  // 1e38 is finite, but its square is not
    if (kThreadSanitizer && !std::isnan(bad)) return;
    const int failing = GENERATE(0, 3);
    CAPTURE(bad, failing);
    check_not_finite(kAllRanks, failing, bad, of_nodes(), on_nodes());
}

// Only the ranks with one local rank see it: the norm's estimate and the gradient are finite, the compensated value is
// not.
TEST_CASE("non-finite compensated values on one local rank skip the step on all ranks", "[ranks][onebit]") {
    const auto ranks = on_ranks<std::vector<Snapshot>>(kAllRanks, [&](Context& context) {
        Trainer trainer(context, short_setup(kAllRanks), of_nodes());
        std::vector<Snapshot> all;
        for (unsigned t = 0; t < kWarmup + 2; ++t) {
            if (t == kWarmup + 1 && context.communicator->rank() == 2) {
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

TEST_CASE("tensors that nodes exclude from compression are updated as by AdamW", "[ranks][onebit]") {
    const bool bf16 = GENERATE(false, true);
    CAPTURE(bf16);
    check_excluded(kAllRanks, {.freeze_after = kWarmup, .exclude = "wpe|ln_", .ranks_per_node = kRanksOfNode}, bf16,
                   on_nodes());
}

TEST_CASE("1-bit Adam of nodes resumes bit-identical from a checkpoint", "[ranks][onebit]") {
    check_resumes(kAllRanks, of_nodes(), GENERATE(1u, unsigned(kWarmup), unsigned(kWarmup) + 2), on_nodes());
}

TEST_CASE("other nodes resume with the pending errors, or print that they start at 0", "[ranks][onebit]") {
    struct Case {
        int ranks, ranks_per_node;
        const char* note;
    };
    constexpr int kWere = 6, kOnNodeWere = 3;
    const Case now = GENERATE(Case{4, 2, "optimizer state onebit: 4 ranks instead of 6: each starts with the mean of "},
                              Case{6, 2, "optimizer state onebit: 6 ranks on other machines: each starts with the "},
                              Case{6, 1, "optimizer state onebit: starts at 0, because the checkpoint's is for "});
    CAPTURE(now.ranks, now.ranks_per_node);
    const ScratchFolder folder;
    const auto elements = std::size_t(ParameterTable(kTinyModel).elements());
    const auto were = on_ranks<Snapshot>(kWere, [&](Context& context) {
        const int rank = context.communicator->rank();
        Trainer trainer(context, short_setup(kWere), of_nodes({.freeze_after = kWarmup}, kOnNodeWere));
        for (unsigned t = 0; t < kWarmup + 2; ++t) trainer.step(short_batch(t), 1, 1e-2f);
        const Snapshot then = snapshot(trainer);
        write_state(folder / state_file_name("onebit", rank, kWere), trainer.state_file("onebit"),
                    std::int64_t(elements), then.errors);
        return then;
    }, on_nodes(kOnNodeWere));
    std::vector<std::string> notes(std::size_t(now.ranks));
    const auto are = on_ranks<Snapshot>(now.ranks, [&](Context& context) {
        const int rank = context.communicator->rank();
        Trainer trainer(context, short_setup(now.ranks), of_nodes({.freeze_after = kWarmup}, now.ranks_per_node));
        trainer.step(short_batch(0), 1, 0);  // scalars for the snapshot
        notes[std::size_t(rank)] = load_from(trainer, were[0], folder, kWere, *context.communicator);
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

TEST_CASE("with nodes as workers a rank needs memory for its shards only", "[onebit]") {
    const ParameterTable table(ModelConfig{.layers = 4, .heads = 4, .channels = 256, .max_seq_len = 256,
                                           .vocabulary = 5000});
    const double elements = double(table.elements());
    const double ranks = double(OnebitMean::bytes(table, 16, 1, OnebitScale::bucket).device),
                 nodes = double(OnebitMean::bytes(table, 4, 4, OnebitScale::bucket).device);
    const auto allocated = [&](double bytes_of_element) {  // on a host, full huge pages
        return Approx(double(device::allocation_size(std::size_t(elements * bytes_of_element)))).epsilon(0.02);
    };
    CHECK(ranks == allocated(4 + 8.0 / 16 + 3.0 / 8 + 1.0 / 8));
    CHECK(nodes == allocated((8 + 8.0 / 4 + 2.0 / 8) / 4 + 1.0 / 8 + 1.0 / 8));
    // The slow second moment is freed before the errors are allocated.
    const Sharding sharding{.stage = 0, .rank = 0, .ranks = 16};
    const std::size_t shadow = std::size_t(table.elements()) * sizeof(float);
    const std::size_t host = device::memory_is_host_memory() ? std::size_t(table.elements()) / 8 + (4 << 20) : 0;
    const std::size_t expected = device::allocation_size(shadow) + host + sketch_bytes();
    CHECK(onebit_bytes(table, sharding, onebit({.ranks_per_node = 4})).bytes == expected);
}

TEST_CASE("1-bit Adam of nodes is bit-identical in processes and in threads", "[onebit][mpi]") {
    skip_without_mpi();
    check_case("mpi rank: 1-bit Adam of nodes", kAllRanks);
}

TEST_CASE("mpi rank: 1-bit Adam of nodes", "[.]") {
    const auto communicator = open_communicator(0, kRanksOfNode);
    const auto got = on_processes(*communicator)(kAllRanks, onebit_run(of_nodes()));
    CHECK(same_results(got, on_threads(on_nodes())(kAllRanks, onebit_run(of_nodes()))));
}
