// model_test.cpp - a whole GPT-2: loss, gradients and training against fp64, at the geometry of this build; rows of
// documents (ranks: data_parallel_ranks_test.cpp)
#include "test/support/model_support.h"

using namespace llmc;
using namespace test;

namespace {

std::size_t activation_bytes(const ModelSetup& setup, const device::Info& device) {
    return model_bytes(setup, ParameterTable(setup.config), device).activations;
}

std::vector<float> gradients_of(Context& context, const ModelSetup& setup, const GlobalBatch& batch) {
    Trainer trainer(context, setup);
    trainer.accumulate(batch, 2);
    return trainer.gradients();
}

constexpr int kEnd = 60;  // starts a document

ModelSetup setup_with_documents(kernels::DType dtype = kernels::DType::fp32, Recompute recompute = Recompute::none) {
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

TEST_CASE("logits in chunks give the same loss and gradients", "[model]") {
    Context context = make_context();
    const std::size_t row_bytes = std::size_t(kTinyModel.padded_vocabulary()) * sizeof(float);
    const std::size_t rows = GENERATE(1u, 7u, 100u);  // of 256
    CAPTURE(rows);
    context.device.logits_bytes = rows * row_bytes;
    Trainer trainer(context, tiny_setup());
    const GlobalBatch batch = random_batch_with_gaps(2);
    const auto want = reference_gradient(trainer.table(), widen(trainer.master_weights()), batch.reference());
    check_step(trainer, batch, 1, want);
}

TEST_CASE("recomputed activations give bit-identical gradients, also of documents", "[model][documents]") {
    Context context = make_context();
    const auto dtype = GENERATE(kernels::DType::fp32, kernels::DType::bf16);
    const bool documents = GENERATE(false, true);
    const auto gradients = [&](Recompute recompute) {
        return documents ? gradients_of(context, setup_with_documents(dtype, recompute), packed_documents())
                         : gradients_of(context, tiny_setup(dtype, recompute), random_batch(5));
    };
    const auto kept = gradients(Recompute::none);
    CHECK(largest_magnitude(widen(kept)) > 0);
    CHECK(same_bits(gradients(Recompute::block), kept));
    for (const auto recompute : {Recompute::gelu, Recompute::gelu_layernorm}) {
        const auto again = gradients(recompute);
        // On a GPU, cuBLASLt's GELU, fused with bf16 products, and the kernel that recomputes it round differently.
        if (context.device.kind == "cuda" && dtype == kernels::DType::bf16)
            CHECK(largest_error(again, widen(kept)) <= 0x1p-7 * largest_magnitude(widen(kept)));
        else CHECK(same_bits(again, kept));
    }
}

TEST_CASE("a chunk of logits has at most the device's limit of bytes and at least one row", "[model]") {
    device::Info device = device::open(2);
    CHECK(device.logits_bytes >= std::size_t(100) << 20);
    ModelSetup setup{.config = {}, .shape = {4, 1024}};
    const std::size_t row = std::size_t(setup.config.padded_vocabulary()) * sizeof(float);
    CHECK(classifier_rows(setup, 512 * row, sizeof(float)) == 512);
    CHECK(classifier_rows(setup, 600 * row, sizeof(float)) == 512);  // full tiles
    CHECK(classifier_rows(setup, 2000 * row, sizeof(float)) == 1536);  // 4096 rows in three chunks, each at most 1792
    CHECK(classifier_rows(setup, 250 * row, sizeof(float)) == 241);  // 17 chunks of the same size
    CHECK(classifier_rows(setup, 5000 * row, sizeof(float)) == 4096);
    CHECK(classifier_rows(setup, row - 1, sizeof(float)) == 1);
    setup.shape = {64, 1024};
    CHECK(classifier_rows(setup, std::size_t(1) << 30, sizeof(kernels::bf16)) == 9472);  // 37 tiles, seven times
    setup.shape = {4, 1024};
    device.logits_bytes = 1024 * row;
    const std::size_t more = activation_bytes(setup, device);
    device.logits_bytes = 512 * row;
    CHECK(more - activation_bytes(setup, device) == 512 * row);
}

TEST_CASE("bf16 is as close to fp64 as its eight bits allow", "[model]") {
    Context context = make_context();
    Trainer trainer(context, tiny_setup(kernels::DType::bf16));
    const GlobalBatch batch = random_batch_with_gaps(3);
    const auto want = reference_gradient(trainer.table(), widen(trainer.master_weights()), batch.reference());
    const auto scalars = trainer.step(batch);
    const auto got = mean_gradient(trainer, batch);
    double product = 0;
    for (std::size_t i = 0; i < got.size(); ++i) product += got[i] * want.gradient[i];
    CHECK(std::fabs(scalars.loss - want.loss.mean()) <= 2e-3 * want.loss.mean());
    CHECK(product >= 0.999 * norm(got) * norm(want.gradient));
    CHECK(std::fabs(scalars.grad_norm - norm(want.gradient)) <= 1e-2 * norm(want.gradient));
}

TEST_CASE("padding rows of the vocabulary stay 0", "[model]") {
    Context context = make_context();
    const auto dtype = GENERATE(kernels::DType::fp32, kernels::DType::bf16);
    Trainer trainer(context, tiny_setup(dtype));
    for (unsigned step = 0; step < 3; ++step) trainer.step(random_batch(step), 2);
    const auto master_weights = trainer.master_weights();
    const auto rows = trainer.table().view(std::span<const float>(master_weights), trainer.table().token_table());
    const auto padding = rows.subspan(std::size_t(kTinyModel.vocabulary) * std::size_t(kTinyModel.channels));
    REQUIRE(!padding.empty());
    CHECK(std::all_of(padding.begin(), padding.end(), [](float x) { return x == 0; }));
}

TEST_CASE("autotuning before a run does not change its results", "[model]") {
    Context context = make_context();
    const auto dtype = GENERATE(kernels::DType::fp32, kernels::DType::bf16);
    const auto recompute = GENERATE(Recompute::none, Recompute::block);
    ModelSetup setup = tiny_setup(dtype, recompute);
    if (dtype == kernels::DType::bf16 && recompute == Recompute::block) setup.fp8 = Fp8::head;
    context.device.logits_bytes = std::size_t(kTinyModel.padded_vocabulary()) * sizeof(float) * 100;  // in chunks
    const GlobalBatch batch = random_batch_with_gaps(3), other = random_batch(4);
    Trainer plain(context, setup), chosen(context, setup);
    BatchUpload upload(setup, context);
    for (const bool accumulating : {false, true})
        chosen.model().choose_products(
            upload.upload(other.tokens, other.targets, setup.shape, Purpose::evaluation), accumulating);
    CHECK(same_bits(plain.master_weights(), chosen.master_weights()));
    for (Trainer* trainer : {&plain, &chosen}) trainer->step(batch, 2);
    CHECK(same_bits(plain.gradients(), chosen.gradients()));
    CHECK(same_bits(plain.master_weights(), chosen.master_weights()));
}

TEST_CASE("packed documents have the losses and gradients of each in a row of its own", "[model][documents]") {
    Context context = make_context();
    Trainer trainer(context, setup_with_documents()), whole_rows(context, tiny_setup());
    const GlobalBatch batch = packed_documents();
    const auto want = reference_of_documents(trainer.table(), widen(trainer.master_weights()), batch, kEnd);
    CHECK(std::fabs(trainer.loss(batch) - want.loss.mean()) <= 1e-6 * want.loss.mean());
    CHECK(std::fabs(whole_rows.loss(batch) - want.loss.mean()) > 1e-4 * want.loss.mean());
    const int micro_batches = GENERATE(1, 4);
    check_step(trainer, batch, micro_batches, want);
}

TEST_CASE("rows of one document have the bits of a run without --document-mask", "[model][documents]") {
    Context context = make_context();
    const auto dtype = GENERATE(kernels::DType::fp32, kernels::DType::bf16);
    GlobalBatch batch = random_batch_with_gaps(3);
    for (std::size_t i = 0; i < batch.tokens.size(); ++i)
        batch.tokens[i] = i % kTinySeqLen == 0 && i % 32 == 0 ? kEnd : batch.tokens[i] % kEnd;
    CHECK(same_bits(gradients_of(context, setup_with_documents(dtype), batch),
                    gradients_of(context, tiny_setup(dtype), batch)));
}
