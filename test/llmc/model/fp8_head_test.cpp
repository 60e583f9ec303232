// fp8_head_test.cpp - the head in 8-bit floats: values computed elsewhere, and chunks of rows
#include "kernels/fp8.h"
#include "llmc/model/activations.h"
#include "test/support/rank_support.h"

using namespace llmc;
using namespace test;
using kernels::bf16, kernels::e4m3, kernels::e5m2;

namespace {

// sin(0.7 i^2 + 1.3 i + k), i = 0, ..., n - 1, times `factor`, plus `mean`; rows of `columns` become rows of `padded`.
std::vector<bf16> waves(int n, int k, double factor, double mean, int columns, int padded) {
    std::vector<bf16> values(std::size_t(n / columns * padded));
    for (int i = 0; i < n; ++i)
        values[std::size_t(i / columns * padded + i % columns)] =
            narrow<bf16>(mean + factor * std::sin(0.7 * i * i + 1.3 * i + k));
    return values;
}

template <class T> std::vector<double> first_of(std::span<const T> device, std::size_t first, std::size_t count) {
    std::vector<T> host(count);
    device::copy_to_host(host.data(), device.data() + first, count * sizeof(T), nullptr);
    device::sync(nullptr);
    return widen(host);
}

struct Expected {
    Fp8 fp8;
    double sum, squares;  // of dW
    std::vector<double> losses, g, dx;
};

}  // namespace

// Computed with numpy, with 8 channels; the others are 0 here, so that there are 16.
TEST_CASE("the head in fp8 has the values of its definition", "[fp8][model]") {
    const Expected want = GENERATE(values<Expected>({
        {Fp8::head_backward, -0.076210022, 2.5501282, {3.8356141, 2.2297219, 0, 2.5892141},
         {5120, 4096, 1792, -32768, 1024, 448, 1280, 3584, 512, 1792, 3072, 5120, 1536, 1024, 1280, 1536},
         {0.005065918, -0.027587891, 0.020751953, -0.054443359, -0.028076172, -0.011230469, 0.091796875, 0.07421875}},
        {Fp8::head, -0.056144714, 2.5346211, {3.7996565, 2.1858733, 0, 2.5687702},
         {5120, 3584, 2048, -32768, 1024, 448, 1280, 3584, 640, 1792, 3072, 4096, 1536, 1024, 1280, 1536},
         {0.0021972656, -0.030639648, 0.019775391, -0.052490234, -0.029296875, -0.012512207, 0.088378906,
          0.072753906}},
    }));
    constexpr int kRows = 4, kChannels = 16, kVocabulary = 16, kPadded = 128;
    Context context = make_context();
    const ModelSetup setup{.config = {.layers = 1, .heads = 1, .channels = kChannels, .max_seq_len = kRows,
                                      .vocabulary = kVocabulary},
                           .dtype = kernels::DType::bf16, .shape = {1, kRows}, .fp8 = want.fp8};
    Arena counter(nullptr);
    lay_out_activations<bf16>(counter, setup, context.device.logits_bytes);
    const device::Memory memory(counter.bytes());
    Arena arena(memory.data());
    const ActivationSpans<bf16> act = lay_out_activations<bf16>(arena, setup, context.device.logits_bytes);
    const Fp8Head& head = act.fp8;
    auto of_weight = waves(128, 2, 0.3, 0, 8, kChannels);
    of_weight.resize(kPadded * kChannels);
    const auto x = on_device(waves(32, 1, 2, 0, 8, kChannels)), weight = on_device(of_weight),
               gamma = on_device(waves(8, 3, 0.5, 1, 8, kChannels)),
               beta = on_device(waves(8, 4, 0.1, 0, 8, kChannels));
    const auto targets = on_device(std::vector<int>{3, 0, kernels::kIgnoreTarget, 15});
    const auto dweight = poisoned<float>(std::size_t(kPadded * kChannels));
    const device::StreamRef stream = context.stream;
    round_weights(head, gamma.span(), beta.span(), weight.span(), stream);
    if (want.fp8 == Fp8::head_backward)
        context.matmul.forward<bf16>({act.logits, {}, x.span(), weight.span(), {}, kRows, kChannels, kPadded}, stream);
    head_in_fp8(want.fp8, head,
                {.losses = act.losses, .dweight = dweight.span(), .logits = act.logits, .dx = act.dnormed,
                 .x = x.span(), .targets = targets.span(), .rows = kRows, .token_weight = 0.25f, .accumulate = false},
                setup.config, context.matmul, stream);
    context.stream.sync();

    CHECK(first_of<float>(head.scales, 0, 4) == std::vector<double>{64, 1024, 1.0 / 64, 1.0 / 1024});
    CHECK(first_of<e4m3>(head.x, 0, 8) == std::vector<double>{104, 18, 15, -128, -128, -16, 64, 52});
    CHECK(first_of<e4m3>(head.weight, 3 * kChannels, 8) == std::vector<double>{88, 208, 20, 208, 88, 24, -288, -288});
    CHECK(largest_error(first_of<float>(act.losses, 0, kRows), want.losses) <= 1e-6);
    CHECK(first_of<e5m2>(head.dlogits, 0, kVocabulary) == want.g);
    CHECK(largest_error(first_of<bf16>(act.dnormed, 0, 8), want.dx) <= 1e-8);
    double sum = 0, squares = 0;
    for (const float dw : dweight.download(stream)) sum += dw, squares += double(dw) * dw;
    CHECK(std::fabs(sum - want.sum) <= 1e-6);
    CHECK(std::fabs(squares - want.squares) <= 1e-6);
}

// Of fewer than 8 rows the transposed gradients take more memory than the logits that they overwrite.
TEST_CASE("the fp8 head in chunks gives the same loss and gradients", "[fp8][model]") {
    Context context = make_context();
    ModelSetup setup = tiny_setup(kernels::DType::bf16);
    setup.fp8 = Fp8::head;
    const GlobalBatch batch = random_batch_with_gaps(2);
    std::vector<double> whole;
    double loss_of_whole = 0;
    for (const std::size_t rows : {256u, 1u, 7u, 100u}) {
        CAPTURE(rows);
        context.device.logits_bytes = rows * std::size_t(kTinyModel.padded_vocabulary()) * sizeof(bf16);
        Trainer trainer(context, setup);
        const double loss = trainer.step(batch).loss;
        if (whole.empty()) whole = widen(trainer.gradients()), loss_of_whole = loss;
        const double close = device::is_gpu() ? 1e-2 : 1e-6;  // products of other shapes round differently
        CHECK(std::fabs(loss - loss_of_whole) <= close * loss);
        CHECK(relative_error(trainer.gradients(), 1, whole) <= close);
    }
}
