// checkpoint_writer_ranks_test.cpp - the memory plan's line for a checkpoint's copies equals what a run allocates, at
// every ZeRO stage, before and after the freeze
#include "llmc/run/checkpoint/checkpoint_writer.h"

#include "llmc/model/muon.h"
#include "test/support/onebit_support.h"

using namespace llmc;
using namespace test;

namespace {

// Reads a private member: the elements of the copy, which the program does not need to know.
template <auto Member> struct CopyReader {
    friend std::size_t copied_elements(const CheckpointWriter& writer) { return writer.*Member; }
};
template struct CopyReader<&CheckpointWriter::memory_elements_>;
std::size_t copied_elements(const CheckpointWriter& writer);

struct CopyCase {
    std::string name;
    int ranks;
    OptimizerSettings optimizer{};
    int stage = 0, ranks_per_node = 0;
    kernels::DType dtype = kernels::DType::fp32;
};

OptimizerSettings without_shadow(OnebitSettings settings) {
    OptimizerSettings adamw = onebit(settings);
    adamw.beta2 = settings.shadow_beta2;
    return adamw;
}

std::vector<CopyCase> copy_cases() {
    std::vector<CopyCase> all;
    for (const int ranks : {1, 3})
        for (const int stage : {0, 1, 2})
            for (const auto dtype : {kernels::DType::fp32, kernels::DType::bf16})
                all.push_back({.name = "adamw", .ranks = ranks, .stage = stage, .dtype = dtype});
    for (const auto& [ranks, stage, dtype] : {std::tuple(1, 0, kernels::DType::bf16), {3, 0, kernels::DType::fp32},
                                              {3, 2, kernels::DType::bf16}})
        all.push_back({.name = "muon", .ranks = ranks, .optimizer = {.kind = &kMuon, .own = MuonSettings{}},
                       .stage = stage, .dtype = dtype});
    for (const OnebitScale scale : {OnebitScale::bucket, OnebitScale::tensor, OnebitScale::block})
        all.push_back({"--onebit-bits 1", 3, onebit({.freeze_after = kWarmup, .scale = scale})});
    const OnebitSettings nodes{.freeze_after = kWarmup, .ranks_per_node = 2},
                         bits32{.freeze_after = kWarmup, .frozen_only = true};
    all.push_back({"no slow second moment", 2, without_shadow({.freeze_after = kWarmup})});
    all.push_back({"one rank", 1, onebit()});
    all.push_back({"--onebit-bits 32", 3, onebit(bits32)});
    all.push_back({"--onebit-bits 32, no slow second moment", 2, without_shadow(bits32)});
    all.push_back({"--onebit-hierarchical", 4, onebit(nodes), 0, 2});
    all.push_back({"--onebit-hierarchical, no slow second moment", 4, without_shadow(nodes), 0, 2});
    all.push_back({"--onebit-hierarchical on one machine", 2, onebit(nodes), 0, 2});
    return all;
}

ModelSetup setup_of(const CopyCase& of, int rank) {
    ModelSetup setup = short_setup(of.ranks);
    setup.dtype = of.dtype;
    setup.sharding = {.stage = of.stage, .rank = rank, .ranks = of.ranks,
                      .whole_matrices = of.optimizer.kind->whole_matrices};
    return setup;
}

bool compresses(const CopyCase& of) {
    const auto* const onebit = std::any_cast<OnebitSettings>(&of.optimizer.own);
    return onebit && !onebit->frozen_only && of.ranks > onebit->ranks_per_node;
}
// Chunks of 128 elements: of each rank's part of a bucket, and of what it serves.
std::size_t padding(const CopyCase& of) {
    return compresses(of) ? std::size_t(kTinyModel.layers + 2) * std::size_t(of.ranks + 1) * 128 * sizeof(float) : 0;
}
// Of its moments and errors, what lies between the parameters in memory.
std::size_t gaps(const CopyCase& of, const ParameterTable& table, int rank) {
    const GradientBuckets buckets(table, setup_of(of, rank).sharding);
    std::int64_t elements = buckets.owned_elements();
    for (const OwnedShard& shard : buckets.owned())
        for (const ParameterSpec& spec : table.tensors())
            elements -= std::max<std::int64_t>(common(shard.flat, spec.range_in_files()).size, 0);
    return (of.optimizer.kind == &kOnebitAdam ? 4 : 2) * std::size_t(elements) * sizeof(float);
}

}  // namespace

TEST_CASE("a checkpoint's copy takes the bytes of the plan", "[ranks][checkpoint][onebit][memory_plan]") {
    const ParameterTable table(kTinyModel);
    const std::vector<CopyCase> cases = copy_cases();
    for (const CopyCase& of : kThreadSanitizer ? std::span(cases).last(3) : std::span(cases)) {
        const ScratchFolder scratch;
        const auto taken = on_ranks<std::size_t>(of.ranks, [&](Context& context) {
            const ModelSetup setup = setup_of(of, context.world->rank());
            Trainer trainer(context, setup, of.optimizer);
            Report report("", 100, false);
            CheckpointWriter writer({.output_dir = scratch.path()}, {}, trainer.model(), trainer.optimizer(), context,
                                    report);
            for (unsigned t = 0; t < kWarmup + 1; ++t) {
                trainer.step(short_batch(t), 1, 1e-2f);
                writer.begin({.step = t + 1});
                writer.end(true);
            }
            return copied_elements(writer) * sizeof(float);
        }, {.ranks_per_node = of.ranks_per_node});
        for (int rank = 0; rank < of.ranks; ++rank) {
            const std::size_t took = taken[std::size_t(rank)],
                              planned = CheckpointWriter::copy_bytes(table, setup_of(of, rank).sharding, of.optimizer);
            CAPTURE(of.name, of.stage, rank, took, planned);
            CHECK(planned >= took);
            CHECK(planned <= took + padding(of) + gaps(of, table, rank));
        }
    }
}
