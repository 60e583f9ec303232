// documents_test.cpp - documents that are packed into rows do not see each other (ranks: data_parallel_ranks_test.cpp)
#include "test/support/model_support.h"

using namespace llmc;
using namespace test;

namespace {

constexpr int kEnd = 60;  // starts a document

ModelSetup setup_with_documents(kernels::DType dtype = kernels::DType::fp32,
                                Recompute recompute = Recompute::none) {
    ModelSetup setup = tiny_setup(dtype, recompute);
    setup.end_of_text = kEnd;
    return setup;
}

// Rows of 1 to 5 documents, some of one token.
GlobalBatch packed_documents() {
    GlobalBatch batch = random_batch_with_gaps(2);
    for (int& token : batch.tokens) token %= kEnd;
    const std::vector<std::vector<int>> starts{{}, {0}, {15}, {0, 15}, {4, 5}, {1}, {3, 7, 8, 12}, {0, 1, 2, 3, 4}};
    for (int row = 0; row < batch.rows; ++row)
        for (const int start : starts[std::size_t(row) % starts.size()])
            batch.tokens[std::size_t(row * batch.seq_len + start)] = kEnd;
    return batch;
}

}  // namespace

TEST_CASE("packed documents have the losses and gradients of each in a row of its own", "[model][documents]") {
    Context context = make_context();
    Trainer trainer(context, setup_with_documents()), whole_rows(context, tiny_setup());
    const GlobalBatch batch = packed_documents();
    const auto want = reference_of_documents(trainer.table(), widen(trainer.master_weights()), batch, kEnd);
    CHECK(std::fabs(trainer.loss(batch) - want.loss.mean()) <= 1e-6 * want.loss.mean());
    CHECK(std::fabs(whole_rows.loss(batch) - want.loss.mean()) > 1e-4 * want.loss.mean());
    const int micro_batches = GENERATE(1, 4);
    const auto scalars = trainer.step(batch, micro_batches);
    CHECK(std::fabs(scalars.loss - want.loss.mean()) <= 1e-6 * want.loss.mean());
    CHECK(largest_error(mean_gradient(trainer, batch), want.gradient) <= 2e-6 * largest_magnitude(want.gradient));
}

TEST_CASE("documents that are recomputed have bit-identical gradients", "[model][documents]") {
    Context context = make_context();
    const auto dtype = GENERATE(kernels::DType::fp32, kernels::DType::bf16);
    const auto gradients = [&](Recompute recompute) {
        Trainer trainer(context, setup_with_documents(dtype, recompute));
        trainer.accumulate(packed_documents(), 2);
        return trainer.gradients();
    };
    CHECK(same_bits(gradients(Recompute::block), gradients(Recompute::none)));
}

TEST_CASE("rows of one document have the bits of a run without --document-mask", "[model][documents]") {
    Context context = make_context();
    const auto dtype = GENERATE(kernels::DType::fp32, kernels::DType::bf16);
    GlobalBatch batch = random_batch_with_gaps(3);
    for (std::size_t i = 0; i < batch.tokens.size(); ++i)
        batch.tokens[i] = i % kTinySeqLen == 0 && i % 32 == 0 ? kEnd : batch.tokens[i] % kEnd;
    const auto gradients = [&](const ModelSetup& setup) {
        Trainer trainer(context, setup);
        trainer.accumulate(batch, 2);
        return trainer.gradients();
    };
    CHECK(same_bits(gradients(setup_with_documents(dtype)), gradients(tiny_setup(dtype))));
}
