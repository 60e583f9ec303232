// memory_plan_test.cpp - the plan counts all allocations, and a plan that does not fit is refused
#include "llmc/model/memory_plan.h"
#include "llmc/model/muon.h"

#include "test/support/model_support.h"
#include "test/support/scratch_folder.h"

using namespace llmc;
using namespace test;

namespace {

const ModelSetup kSmall{.config = {.layers = 2, .heads = 4, .channels = 64, .max_seq_len = 64, .vocabulary = 257},
                        .shape = {16, 64}};
const ParameterTable kTable(kSmall.config);
const std::size_t kFlat = std::size_t(kTable.elements()) * sizeof(float);  // bytes of all parameters in fp32

MemoryPlan planned(const ModelSetup& setup, const Context& context, bool reduce_in_bf16 = false) {
    return plan_memory({.setup = setup, .reduce_in_bf16 = reduce_in_bf16}, ParameterTable(setup.config), context);
}

ModelBytes bytes_of(const ModelSetup& setup, const Context& context) {
    return model_bytes(setup, ParameterTable(setup.config), context.device);
}

std::size_t moments_of(const Sharding& sharding) {
    return kAdamW.bytes({}, kTable, sharding, kernels::DType::fp32).at(0).bytes;
}

std::string refusal(const ModelSetup& setup, const Context& context) {
    return error_of([&] { require_room(planned(setup, context)); });
}

}  // namespace

TEST_CASE("the plan counts the later allocations", "[memory_plan]") {
    const Context context = make_context();
    ModelSetup setup = kSmall;
    CHECK(bytes_of(setup, context).master_weights == kFlat);
    CHECK(gradient_bytes(kTable, {}) == kFlat);
    CHECK(bytes_of(setup, context).parameters == 0);  // in fp32 they are the master weights
    CHECK(moments_of({}) == 2 * kFlat);
    setup.dtype = kernels::DType::bf16;
    CHECK(bytes_of(setup, context).parameters == kFlat / 2);
    CHECK(bytes_of(setup, context).activations < 0.6 * double(bytes_of(kSmall, context).activations));
    const std::size_t in_bf16 = bytes_of(setup, context).activations;
    setup.fp8 = Fp8::head;  // weights of 384 x 64 and 1024 rows of 384 logits and 64 channels, and their transposes
    CHECK(bytes_of(setup, context).activations - in_bf16 == 2 * 384 * 64 + 1024 * (384 + 2 * 64) + 2 * 256);
    setup.training = false;
    CHECK(planned(setup, context).text().find("gradients") == std::string::npos);
    CHECK(bytes_of(setup, context).activations < in_bf16);
}

TEST_CASE("the plan divides state among ranks according to the ZeRO stage", "[memory_plan][ranks]") {
    const Context context = make_context();
    std::size_t moments = 0, master_weights = 0, kept = 0;
    for (int rank = 0; rank < 3; ++rank) {
        const Sharding one{.stage = 1, .rank = rank, .ranks = 3}, two{.stage = 2, .rank = rank, .ranks = 3};
        CHECK(gradient_bytes(kTable, {.sharding = one}) == kFlat);
        CHECK(gradient_bytes(kTable, {.sharding = one, .reduce_in_bf16 = true}) == kFlat + kFlat / 2);
        CHECK(moments_of(two) == moments_of(one));
        moments += moments_of(one);
        ModelSetup setup = kSmall;
        setup.sharding = one;
        CHECK(bytes_of(setup, context).master_weights == kFlat);  // in fp32 they are the parameters
        setup.dtype = kernels::DType::bf16;
        master_weights += bytes_of(setup, context).master_weights;
        const GradientBuckets buckets(kTable, two);
        const std::size_t working = std::size_t(2 * buckets.largest_block() + buckets[buckets.embeddings()].flat.size) *
                                    sizeof(float);
        kept += gradient_bytes(kTable, {.sharding = two}) - working;
    }
    CHECK(moments == 2 * kFlat);
    CHECK(master_weights == kFlat);
    CHECK(kept == kFlat);
}

TEST_CASE("the share of Muon's orthogonalization follows from channels, tokens and ranks", "[memory_plan]") {
    const ParameterTable table(model_by_name("d12", 50257).config);
    const double share = 25.0 / 6 * 768 / 524288;  // 300 C^3 to 72 C^2 per token
    CHECK(muon_share(table, 1, 524288) == Approx(share));
    CHECK(muon_share(table, 8, 524288) == Approx(share).epsilon(0.1));  // each rank has an eighth of both
    CHECK(muon_share(table, 1, 4096) == Approx(128 * share));
}

TEST_CASE("Muon's momentum is at the owners, and AdamW's moments are of the rest", "[memory_plan][ranks]") {
    const Context context = make_context();
    const OptimizerSettings settings{.kind = &kMuon, .own = MuonSettings{}};
    std::size_t matrices = 0;
    for (const BlockMatrix& matrix : block_matrices(kTable, 1)) matrices += std::size_t(matrix.size());
    const std::size_t rest = std::size_t(kTable.elements()) - matrices;
    for (const int stage : {0, 1}) {
        std::size_t moments = 0, momentum = 0;
        for (int rank = 0; rank < 3; ++rank) {
            ModelSetup setup = kSmall;
            setup.sharding = {.stage = stage, .rank = rank, .ranks = 3, .whole_matrices = true};
            const auto bytes = settings.kind->bytes(settings, kTable, setup.sharding, setup.dtype);
            REQUIRE(bytes.size() == 3);
            moments += bytes[0].bytes;
            momentum += bytes[1].bytes;
            CHECK(bytes[1].copied == bytes[1].bytes);
            CHECK_THAT(plan_memory({.setup = setup, .optimizer = settings}, kTable, context).text(),
                       Contains("Muon's momentum, fp32") && Contains("Muon's orthogonalization"));
        }
        CHECK(momentum == matrices * sizeof(float));
        CHECK(moments == (stage == 0 ? 3 : 1) * 2 * rest * sizeof(float));
    }
}

TEST_CASE("the plan counts bf16 copies of gradients and the gather for a checkpoint", "[memory_plan][ranks]") {
    const Context context = make_context();
    CHECK(planned(kSmall, context, true).total() == planned(kSmall, context).total() + kFlat / 2);
    ModelSetup setup = kSmall;
    setup.dtype = kernels::DType::bf16;
    CHECK(bytes_of(setup, context).gathered == 0);  // every rank has all master weights
    setup.sharding = {.stage = 1, .rank = 0, .ranks = 3};
    const GradientBuckets buckets(kTable, setup.sharding);
    std::int64_t largest = 0;
    for (const GradientBucket& bucket : buckets.all()) largest = std::max(largest, bucket.flat.size);
    CHECK(bytes_of(setup, context).gathered == std::size_t(largest) * sizeof(float));
    CHECK_THAT(planned(setup, context).text(), Contains("master weights gathered to save"));
    setup.training = false;
    CHECK_THAT(planned(setup, context).text(), !Contains("master weights gathered to save"));
}

TEST_CASE("if host memory is device memory, host copies are counted", "[memory_plan][ranks]") {
    const Context context = make_context();
    const bool shared = device::memory_is_host_memory();
    const auto with_copies = plan_memory({.setup = kSmall, .checkpoint_copies = 5 << 20}, kTable, context);
    CHECK(with_copies.total() == planned(kSmall, context).total() + (5 << 20));
    CHECK_THAT(with_copies.text(), test::Contains("copies for a checkpoint"));
    // A model that is only evaluated needs less than loading it: the fp32 array and its bf16 copy.
    ModelSetup setup = kSmall;
    setup.dtype = kernels::DType::bf16;
    setup.training = false;
    setup.shape = {1, 1};
    if (shared)
        CHECK(planned(setup, context).total() == kFlat + kFlat / 2 + kFlat + kFlat / 2 + context.device.library_bytes);
    CHECK((planned(setup, context).text().find("extra at weight loading") != std::string::npos) == shared);
    CHECK_THAT(planned(kSmall, context).text(), !Contains("extra at weight loading"));
}

TEST_CASE("a batch that does not fit is refused with the largest that does", "[memory_plan]") {
    Context context = make_context();
    const auto total = [&](int batch) {
        ModelSetup setup = kSmall;
        setup.shape.batch = batch;
        return planned(setup, context).total();
    };
    context.device.memory_free = total(16);
    CHECK(refusal(kSmall, context) == "accepted");
    context.device.memory_free = total(16) - 1;
    CHECK_THAT(refusal(kSmall, context),
               StartsWith("--micro-batch is 16; ") &&
                   Contains("; the largest that fits is 15: set -b 15, or --ignore-memory-plan"));
    CHECK_THAT(error_of([&] { require_room(planned(kSmall, context), 32, " -d 64"); }),
               Contains("; the largest that fits and divides a step is 8: set -b 8 -d 64 for the same update"));
    context.device.memory_free = total(5) + 1;
    CHECK_THAT(refusal(kSmall, context), Contains("the largest that fits is 5"));
    context.device.memory_free = total(1);
    CHECK_THAT(refusal(kSmall, context), Contains("the largest that fits is 1: set -b 1,"));
    context.device.memory_free = total(1) - 1;
    CHECK_THAT(refusal(kSmall, context), test::Contains("not even one sequence fits"));
    context.device.memory_free = 0;  // unknown: no check
    CHECK(refusal(kSmall, context) == "accepted");
}

TEST_CASE("memory for timing is counted if it exceeds what is allocated later", "[memory_plan]") {
    Context context = make_context();
    const MemoryPlan without = planned(kSmall, context);
    context.tuned = std::make_unique<kernels::TunedAlgorithms>();
    CHECK(planned(kSmall, context).total() == without.total());  // there is no cache to empty
    context.tuned->cache_bytes = std::size_t(1) << 30;
    const MemoryPlan with = planned(kSmall, context);
    const bool times = kernels::Matmul::chooses_by_shape();
    CHECK((with.text().find("extra at autotuning") != std::string::npos) == times);
    if (!times) {
        CHECK(with.total() == without.total());
        return;
    }
    // Less by gradients and moments, which come later.
    CHECK(with.total() >= std::size_t(2) << 30);
    CHECK(with.total() < without.total() + (std::size_t(2) << 30));
    context.tuned->cache_bytes = 1;
    CHECK(planned(kSmall, context).total() == without.total());
}

TEST_CASE("a plan beyond 64 bits is refused, not wrapped around", "[memory_plan]") {
    Context context = make_context();
    context.device.memory_free = std::size_t(1) << 50;
    const ModelSetup vast{.config = {.layers = 65536, .heads = 4096, .channels = 1048576, .max_seq_len = 1 << 20,
                                     .vocabulary = 50257},
                          .shape = {2047, 1 << 20}};
    CHECK(planned(vast, context).total() == std::numeric_limits<std::size_t>::max());
    CHECK_THAT(refusal(vast, context), Contains("not even one sequence fits"));
}
