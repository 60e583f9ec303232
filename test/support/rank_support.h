// rank_support.h - ranks as threads that train a tiny model together, and the final state of each
#pragma once
#include <algorithm>

#include "kernels/device/memory.h"
#include "test/support/communicator_local.h"
#include "test/support/model_support.h"

namespace test {

// Under ThreadSanitizer ranks take ten times as long, and races do not depend on the numbers: tests of many
// combinations skip some there.
#if defined(__SANITIZE_THREAD__)
inline constexpr bool kThreadSanitizer = true;
#else
inline constexpr bool kThreadSanitizer = false;
#endif

// How a global batch is divided: ranks, and micro-batches per rank.
struct Partition {
    int ranks, micro_batches;
};

struct RankRun {
    Partition partition{2, 1};
    llmc::ModelSetup setup = tiny_setup();
    llmc::OptimizerSettings optimizer{};
    llmc::GradientExchange::Settings exchange{};
    llmc::LocalSettings local{};
    std::uint64_t seed = 1;
};

// The state of a rank after its last step.
struct RankResult {
    std::vector<kernels::StepScalars> scalars;         // one per step
    std::vector<kernels::RankSums> totals;             // of every step
    std::vector<float> parameters;                     // the working parameters; bf16 widened
    std::vector<float> moments;                        // the optimizer's state of what it owns
    // the reduced gradient of the last step: its shards, at their offsets in the flat array
    std::vector<float> gradient;
    std::vector<float> master_weights;                        // as saved by rank 0
};

// Runs the body on threads; returns results by rank. Catch2 assertions are not thread-safe, so the caller makes them
// afterwards.
template <class Result, class Body>
std::vector<Result> on_ranks(int ranks, Body&& body, const llmc::LocalSettings& settings = {}) {
    std::vector<Result> results(static_cast<std::size_t>(ranks));
    llmc::run_ranks(
        ranks,
        [&](llmc::Communicator& communicator) {
            llmc::Context context = make_context(communicator);
            results[std::size_t(communicator.rank())] = body(context);
        },
        settings);
    return results;
}

struct RunResult {
    std::vector<RankResult> ranks;
    std::vector<float> gradient;  // reduced, of the last step; each shard comes from the rank that owns it
    std::vector<float> master_weights;   // as rank 0 would save them
    bool ranks_agree() const {
        return std::ranges::all_of(ranks, [&](const RankResult& rank) {
            return same_bits(rank.parameters, ranks[0].parameters) && same_bits(rank.scalars, ranks[0].scalars);
        });
    }
};

// Runs one step for each batch.
inline RunResult run_ranks(const RankRun& run, const std::vector<GlobalBatch>& batches) {
    const llmc::ParameterTable table(run.setup.config);
    const int ranks = run.partition.ranks;
    RunResult result{.ranks = on_ranks<RankResult>(ranks, [&](llmc::Context& context) {
        Trainer trainer(context, run.setup, run.optimizer, run.seed, run.exchange);
        RankResult mine;
        for (const GlobalBatch& batch : batches) {
            mine.scalars.push_back(trainer.step(batch, run.partition.micro_batches));
            mine.totals.push_back(trainer.optimizer().totals());
        }
        for (const kernels::bf16 x : trainer.rounded()) mine.parameters.push_back(kernels::bf16_to_float(x));
        if (mine.parameters.empty()) mine.parameters = trainer.master_weights();
        for (const llmc::StateFile& file : trainer.optimizer().optimizer().state()) {
            const std::vector<float> values = trainer.read_state(file);
            mine.moments.insert(mine.moments.end(), values.begin(), values.end());
        }
        mine.gradient.resize(std::size_t(table.elements()));
        for (const llmc::OwnedShard& shard : trainer.exchange().buckets().owned())
            std::ranges::copy(trainer.read(trainer.exchange().reduced(shard)),
                              shard.flat.of(std::span(mine.gradient)).begin());
        if (context.world->rank() == 0) mine.master_weights.resize(std::size_t(table.elements()));
        trainer.model().copy_master_weights_to_host(mine.master_weights);
        return mine;
    }, run.local), .gradient = std::vector<float>(std::size_t(table.elements())), .master_weights = {}};
    for (int rank = 0; rank < ranks; ++rank) {
        const llmc::GradientBuckets buckets(table, {.stage = run.setup.sharding.stage, .rank = rank, .ranks = ranks,
                                                    .whole_matrices = run.optimizer.kind->whole_matrices});
        const std::span<float> from(result.ranks[std::size_t(rank)].gradient), to(result.gradient);
        for (const llmc::GradientBucket& bucket : buckets.all())
            for (const llmc::BucketPart& part : bucket.parts)
                std::ranges::copy(part.shard.of(bucket.flat.of(from)), part.shard.of(bucket.flat.of(to)).begin());
    }
    result.master_weights = result.ranks[0].master_weights;
    return result;
}

// Of `factor` times `got`, in the Euclidean norm.
inline double relative_error(const std::vector<float>& got, double factor, const std::vector<double>& want) {
    std::vector<double> error(want.size());
    for (std::size_t i = 0; i < want.size(); ++i) error[i] = factor * got[i] - want[i];
    return norm(error) / norm(want);
}

}  // namespace test
