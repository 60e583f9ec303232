// refusals_test.cpp - shapes that kernels of the model refuse; every operation refuses tensors that are too short in
// operations_test.cpp
#include <functional>

#include "kernels/attention/attention.h"
#include "kernels/bias_gradient.h"
#include "kernels/classifier.h"
#include "kernels/embedding.h"
#include "kernels/gelu.h"
#include "kernels/layernorm.h"
#include "kernels/matmul/few_rows.h"
#include "kernels/matmul/matmul.h"
#include "test/support/scratch_folder.h"
#include "test/support/support.h"

using namespace kernels;
using test::Contains;

namespace {

struct Refusal {
    std::function<void()> call;
    const char* says;
};
void check(const std::vector<Refusal>& refusals) {
    for (const auto& [call, says] : refusals) CHECK_THAT(test::error_of(call), Contains(says));
}

// More elements than any call below needs.
struct Tensors {
    device::Array<float> memory{1 << 16};
    device::Array<bf16> memory_bf16{1 << 16};
    device::Array<int> numbers{64};
    std::span<float> f = memory.span();
    std::span<bf16> b = memory_bf16.span();
    std::span<int> ints = numbers.span();
};

}  // namespace

TEST_CASE("kernels of the model refuse shapes that their packs do not divide, and empty ones",
          "[kernels][one_order]") {
    const Tensors t;
    const auto f = t.f;
    const auto b = t.b;
    Matmul matmul;
    const auto norm = [&](int rows, int channels) {
        return [=] { residual_layernorm_forward<float>({f, f, f, f, f, f, f, f, rows, channels}, nullptr); };
    };
    const auto norm_backward = [&](int rows, int channels) {
        return [=] {
            layernorm_backward<float>({f, f, f, f, f, f, f, f, f, f, rows, channels, false, false}, nullptr);
        };
    };
    const auto bias = [&](int rows, int channels) {
        return [=] { bias_gradient<float>({f, f, f, rows, channels, false}, nullptr); };
    };
    const auto classify = [&](int rows, int vocabulary, int padded) {
        return [=, ints = t.ints] {
            classifier<float>({f.first(192), f.first(3), ints.first(3), rows, vocabulary, padded, 1.0f, true}, nullptr);
        };
    };
    const auto embed = [&](int batch, int seq_len, int channels) {
        return [=, ints = t.ints] { embedding_forward<float>({f, ints, f, f, batch, seq_len, channels}, nullptr); };
    };
    const auto embed_backward = [&](int channels, int max_seq_len, std::size_t starts, std::size_t rows) {
        return [=, ints = t.ints] {
            embedding_backward<float>({f, f, f, f, {ints.first(3), ints.first(starts), ints.first(rows)}, 2, 4,
                                       channels, max_seq_len, false}, nullptr);
        };
    };
    const auto product = [&](int rows, int in, int out) {
        return [=, &matmul] { matmul.forward<float>({f, f, f, f, f, rows, in, out}, nullptr); };
    };
    const auto few_rows = [&](int rows) {
        return [=] { few_rows_forward<float>({f, {}, f, f, {}, rows, 16, 16}, nullptr); };
    };
    check({{[&] { gelu_forward<float>({f.first(18), f.first(18)}, nullptr); }, "is 18"},
           {[&] { gelu_backward<float>({f.first(18), f.first(18), f.first(18)}, nullptr); }, "is 18"},
           {[&] { gelu_forward<float>({{}, {}}, nullptr); }, "accepted"},
           {norm(2, 18), "channels of a LayerNorm is 18"},
           {norm(0, 32), "rows of a LayerNorm is 0"},
           {[&] { layernorm_forward<float>({f, f, f, f, f, f, 2, 30}, nullptr); }, "is 30"},
           {norm_backward(2, 18), "is 18"},
           {norm_backward(-1, 32), "is -1"},
           {bias(2, 18), "channels of a bias gradient is 18"},
           {bias(0, 32), "rows of a bias gradient is 0"},
           {[&] { bias_gradient<bf16>({f, f, b, 2, 20, false}, nullptr); }, "is 20"},
           {classify(3, 61, 62), "padded_vocabulary is 62; expected a multiple of 4"},
           {classify(3, 61, 60), "padded_vocabulary is 60; expected at least the vocabulary"},
           {classify(-1, 61, 64), "rows is -1"},
           {classify(3, 0, 64), "vocabulary is 0"},
           {[] { rows_by_token(std::vector{0, 7}, 7); }, "a token id is 7"},
           {[] { rows_by_token(std::vector{-1}, 7); }, "a token id is -1"},
           {embed(2, 4, 18), "channels of an embedding is 18"},
           {embed(0, 4, 32), "batch of an embedding is 0"},
           {embed(2, 0, 32), "sequence length of an embedding is 0"},
           {embed_backward(18, 8, 4, 8), "channels of an embedding is 18"},
           {embed_backward(32, 3, 4, 8), "sequence length of an embedding is 4"},
           {embed_backward(32, 8, 3, 8), "starts of sorted rows is 3"},
           {embed_backward(32, 8, 4, 7), "sorted rows is 7"},
           {product(0, 16, 16), "rows of a matrix product is 0"},
           {product(16, 18, 16), "in_channels of a matrix product is 18"},
           {product(16, 16, 18), "out_channels of a matrix product is 18"},
           {few_rows(5), "few rows is 5; expected 1 to 4"}});
}

TEST_CASE("attention refuses empty shapes, and heads that are not whole packs", "[attention][one_order]") {
    const Tensors t;
    const auto f = t.f;
    const auto b = t.b;
    const auto forward = [&](const AttentionShape& shape) {
        return [=] { attention_forward<float>({f, f, f, shape}, nullptr); };
    };
    const auto backward = [&](int head_size) {
        return [=] { attention_backward<bf16>({b, f, b, b, b, f, {1, 2, 2, head_size}}, nullptr); };
    };
    check({{forward({0, 2, 2, 16}), "batch is 0"},
           {forward({1, 0, 2, 16}), "seq_len is 0"},
           {forward({1, 2, 0, 16}), "heads is 0"},
           {forward({1, 2, 2, 0}), "head_size is 0"},
           {forward({1, 2, 2, 6}), "head_size is 6"},
           {forward({1, 2, 2, 260}), "head_size is 260"},
           {backward(20), "head_size is 20"}});
}
