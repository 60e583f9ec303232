// rank_support.h - ranks, as threads or as processes, that train a tiny model together, and the final state of each
#pragma once
#include <algorithm>
#include <cstring>
#include <functional>
#include <string_view>

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
inline constexpr Partition kPartitions[] = {{1, 1}, {1, 4}, {2, 2}, {2, 8}, {4, 4}, {4, 1}, {8, 2}};

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

    template <class Visit> void visit(Visit&& each) {
        each(scalars), each(totals), each(parameters), each(moments), each(gradient), each(master_weights);
    }
};

// Runs the same function on all ranks; returns each rank's result.
using RankBody = std::function<RankResult(llmc::Communicator&)>;
using RankRunner = std::function<std::vector<RankResult>(int ranks, const RankBody&)>;

// Catch2 assertions are not thread-safe, so the caller makes them afterwards.
inline RankRunner on_threads(const llmc::LocalSettings& settings = {}) {
    return [settings](int ranks, const RankBody& body) {
        std::vector<RankResult> results(static_cast<std::size_t>(ranks));
        llmc::run_ranks(
            ranks,
            [&](llmc::Communicator& communicator) { results[std::size_t(communicator.rank())] = body(communicator); },
            settings);
        return results;
    };
}

template <class T> void append(std::string& text, const std::vector<T>& values) {
    const std::size_t size = values.size();
    text.append(reinterpret_cast<const char*>(&size), sizeof size);
    if constexpr (std::is_trivially_copyable_v<T>)
        text.append(reinterpret_cast<const char*>(values.data()), size * sizeof(T));
    else for (const T& value : values) append(text, value);
}
template <class T> void take(std::string_view& text, std::vector<T>& values) {
    std::size_t size;
    std::memcpy(&size, text.data(), sizeof size);
    text.remove_prefix(sizeof size);
    values.resize(size);
    if constexpr (std::is_trivially_copyable_v<T>) {
        std::memcpy(values.data(), text.data(), size * sizeof(T));
        text.remove_prefix(size * sizeof(T));
    } else {
        for (T& value : values) take(text, value);
    }
}

// This process is one of the ranks, and receives the results of all ranks.
inline RankRunner on_processes(llmc::Communicator& communicator) {
    return [&communicator](int ranks, const RankBody& body) {
        REQUIRE(ranks == communicator.size());
        std::string mine;
        body(communicator).visit([&](const auto& values) { append(mine, values); });
        std::vector<RankResult> results;
        for (const std::string& text : communicator.host_gather(mine)) {
            std::string_view rest = text;
            results.emplace_back().visit([&](auto& values) { take(rest, values); });
        }
        return results;
    };
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

// The reduced gradient of this rank's shards, at their offsets in the flat array.
inline std::vector<float> reduced_shards(const llmc::GradientExchange& exchange, const llmc::ParameterTable& table,
                                         const llmc::Context& context) {
    std::vector<float> gradient(std::size_t(table.elements()));
    for (const llmc::OwnedShard& shard : exchange.buckets().owned()) {
        const auto reduced = exchange.reduced(shard);
        device::copy_to_host(shard.flat.of(std::span(gradient)).data(), reduced.data(), reduced.size_bytes(),
                             context.stream);
    }
    context.stream.sync();
    return gradient;
}

// Runs one step for each batch.
inline RunResult run_ranks(const RankRun& run, const std::vector<GlobalBatch>& batches, const RankRunner& how) {
    const llmc::ParameterTable table(run.setup.config);
    const int ranks = run.partition.ranks;
    RunResult result{.ranks = how(ranks, [&](llmc::Communicator& communicator) {
        llmc::Context context = make_context(communicator);
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
        mine.gradient = reduced_shards(trainer.exchange(), table, context);
        if (communicator.rank() == 0) mine.master_weights.resize(std::size_t(table.elements()));
        trainer.model().copy_master_weights_to_host(mine.master_weights);
        return mine;
    }), .gradient = std::vector<float>(std::size_t(table.elements())), .master_weights = {}};
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
inline RunResult run_ranks(const RankRun& run, const std::vector<GlobalBatch>& batches) {
    return run_ranks(run, batches, on_threads(run.local));
}

}  // namespace test
