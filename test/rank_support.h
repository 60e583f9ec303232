// rank_support.h - ranks as threads that train a tiny model together, and what each of them ends with
#pragma once
#include <cstring>

#include "llmc/communicator_local.h"
#include "test/model_support.h"

namespace test {

// How a global batch is cut: ranks, micro-batches of each.
struct Partition {
    int ranks, micro_batches;
};

struct RankRun {
    Partition partition{2, 1};
    llmc::ModelSetup setup = tiny_setup();
    llmc::AdamWSettings adamw{};
    llmc::GradientExchange::Settings exchange{};
    llmc::LocalSettings local{};
    std::uint64_t seed = 1;
    float loss_factor = 1;  // of the loss that is differentiated, not of the one reported
};

// What a rank knows after its last step.
struct RankResult {
    std::vector<kernels::StepScalars> scalars;         // of every step
    std::vector<std::vector<double>> totals;           // of every step
    std::vector<float> parameters;                     // the working ones; bf16 widened
    std::vector<float> moments;                        // of its pieces, first and second
    std::vector<std::string> group_names;
};

struct RunResult {
    std::vector<RankResult> ranks;
    std::vector<float> gradient;  // of the last step, reduced, each piece from the rank that owns it
    std::vector<float> masters;   // as rank 0 would save them
    bool ranks_agree() const {
        for (const RankResult& rank : ranks) {
            if (std::memcmp(rank.parameters.data(), ranks[0].parameters.data(), rank.parameters.size() * sizeof(float)) != 0) return false;
            if (std::memcmp(rank.scalars.data(), ranks[0].scalars.data(), rank.scalars.size() * sizeof(kernels::StepScalars)) != 0) return false;
        }
        return true;
    }
};

// A step for each batch. Assertions of Catch2 belong to one thread: they come afterwards.
inline RunResult run_ranks(const RankRun& run, const std::vector<GlobalBatch>& batches) {
    RunResult result;
    const llmc::ParameterTable table(run.setup.config);
    result.ranks.resize(std::size_t(run.partition.ranks));
    result.gradient.resize(std::size_t(table.elements()));
    llmc::run_ranks(run.partition.ranks, [&](llmc::Communicator& communicator) {
        llmc::Context context = make_context(communicator);
        Trainer trainer(context, run.setup, run.adamw, run.seed, run.exchange);
        RankResult& mine = result.ranks[std::size_t(communicator.rank())];
        for (const GlobalBatch& batch : batches) {
            mine.scalars.push_back(trainer.step(batch, run.partition.micro_batches, 6e-4f, run.loss_factor));
            const auto totals = trainer.optimizer().totals();
            mine.totals.emplace_back(totals.begin(), totals.end());
        }
        for (const kernels::bf16 x : trainer.rounded()) mine.parameters.push_back(kernels::bf16_to_float(x));
        if (mine.parameters.empty()) mine.parameters = trainer.masters();
        mine.moments = trainer.first_moments();
        const auto second = trainer.second_moments();
        mine.moments.insert(mine.moments.end(), second.begin(), second.end());
        mine.group_names = trainer.exchange().group_names();
        for (int bucket = 0; bucket < trainer.exchange().buckets().size(); ++bucket) {
            const auto piece = trainer.read(trainer.exchange().piece(bucket));
            std::copy(piece.begin(), piece.end(), trainer.exchange().buckets()[bucket].piece_in_flat(std::span(result.gradient)).begin());
        }
        const auto masters = trainer.model().masters_on_host();
        if (communicator.rank() > 0) return;
        result.masters.resize(std::size_t(table.elements()));
        for (int tensor = 0; tensor < int(table.tensors().size()); ++tensor) {
            const auto values = masters(tensor);
            std::copy(values.begin(), values.end(), table.view(std::span(result.masters), tensor).begin());
        }
    }, run.local);
    return result;
}

}  // namespace test
