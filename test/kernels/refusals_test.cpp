// refusals_test.cpp - shapes and arguments that kernels refuse; every operation refuses tensors that are too short in
// operations_test.cpp
#include <functional>

#include "kernels/adamw.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/decode.h"
#include "kernels/bias_gradient.h"
#include "kernels/classifier.h"
#include "kernels/embedding.h"
#include "kernels/gelu.h"
#include "kernels/grad_norm.h"
#include "kernels/layernorm.h"
#include "kernels/matmul/few_rows.h"
#include "kernels/matmul/matmul.h"
#include "kernels/onebit.h"
#include "kernels/outer.h"
#include "kernels/sum_ranks.h"
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
           {few_rows(5), "few rows is 5; expected 1 to 4"},
           {[&] { matmul.multiply<float>({.out = f, .x = f, .addend = {}, .m = 6, .k = 16, .beta = 1}, nullptr); },
            "is 6; expected a positive multiple of 4"},
           {[&] { matmul.multiply<float>({.out = f.first(64), .x = f, .addend = {}, .m = 8, .k = 16, .beta = 1},
                                         nullptr); },
            "the size of addend is 0"},
           {[&] { matmul.multiply<float>({.out = f.first(64), .x = f.subspan(64, 128), .addend = f.first(64), .m = 8,
                                          .k = 16, .beta = 1}, nullptr); },
            "the addend of a symmetric product"}});
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
    DecodeAttention<float> op{.out = f.first(96), .scratch = {}, .qkv = f.first(288), .keys = f.first(960),
                              .values = f.first(960), .batch = 2, .first = 9, .count = 1, .capacity = 10, .heads = 3,
                              .head_size = 16};
    const auto decode = [&](int DecodeAttention<float>::*number, int value) {
        auto changed = op;
        changed.*number = value;
        return [changed] { decode_attention(changed, nullptr); };
    };
    using Decode = DecodeAttention<float>;
    check({{forward({0, 2, 2, 16}), "batch is 0"},
           {forward({1, 0, 2, 16}), "seq_len is 0"},
           {forward({1, 2, 0, 16}), "heads is 0"},
           {forward({1, 2, 2, 0}), "head_size is 0"},
           {forward({1, 2, 2, 6}), "head_size is 6"},
           {forward({1, 2, 2, 260}), "head_size is 260"},
           {backward(20), "head_size is 20"},
           {decode(&Decode::first, 10), "first new position is 10"},
           {decode(&Decode::first, -1), "is -1"},
           {decode(&Decode::count, 0), "number of new positions is 0"},
           {decode(&Decode::batch, 0), "batch of a cache is 0"},
           {decode(&Decode::heads, 0), "heads of a cache is 0"},
           {decode(&Decode::head_size, 6), "head_size of a cache is 6; expected a multiple of 4"},
           {decode(&Decode::head_size, 260), "at most 256"}});
}

TEST_CASE("kernels of the optimizers refuse wrong places, sizes and counts", "[kernels][one_order]") {
    const Tensors t;
    const auto f = t.f.first(32);
    const auto b = t.b.first(32);
    const device::Array<DecaySegment> segments(1);
    const device::Array<StepScalars> scalars(1);
    const device::Array<NormTile> tiles(2);
    const device::Array<double> sums(1);
    const device::Array<RankSums> totals(1);
    const device::Array<std::int32_t> start(2);
    const device::Array<OutlierWindow> window(1);
    const OnebitPlan plan = onebit_plan(onebit_layout(100, 2), 0, {});
    const auto adam = [&](std::span<float> all, std::size_t segment_count, std::size_t scalar_count) {
        return [=, &segments, &scalars] {
            adamw<bf16>({b.first(all.size()), all, all, all, all, segments.span().first(segment_count),
                         scalars.span().first(scalar_count), 0.9f, 0.95f, 1e-8f, 0.1f}, nullptr);
        };
    };
    const auto adam_fp32 = [&](std::span<float> parameter, Rounding rounding) {
        return [=, &segments, &scalars] {
            adamw<float>({parameter, f, f, f, f, segments.span(), scalars.span(), 0.9f, 0.95f, 1e-8f, 0.1f, rounding},
                         nullptr);
        };
    };
    const auto round = [&](std::int64_t first, std::size_t size, std::size_t scalar_count) {
        return [=, &scalars] {
            round_parameters({b.first(size), f, scalars.span().first(scalar_count),
                              {.stochastic = true, .first_element = first}}, nullptr);
        };
    };
    const auto sum = [&](std::span<float> out, std::span<float> own, int rank, int ranks) {
        return [=, rows = t.f.subspan(1024, 128)] { sum_ranks<float>({out, own, rows, 64, rank, ranks}, nullptr); };
    };
    const auto all = t.f.first(64);
    check({{adam(f.first(24), 1, 1), "number of elements is 24; expected a multiple of 16"},
           {adam(f, 0, 1), "segments is 0"},
           {adam(f, 1, 0), "scalars is 0"},
           {adam_fp32(t.f.subspan(64, 32), {}), "expected master itself"},
           {adam_fp32(f, {.stochastic = true}), "rounding of fp32 parameters is stochastic"},
           {round(8, 32, 1), "index of the first element is 8; expected a multiple of 16"},
           {round(-16, 32, 1), "index of the first element is -16"},
           {round(0, 16, 1), "size of parameter is 16"},
           {round(0, 32, 0), "size of scalars is 0"},
           {sum(all, all.first(32), 0, 2), "own contribution"},
           {sum(all, all, 0, 3), "one row per rank"},
           {sum(t.f.subspan(1, 64), t.f.subspan(1, 64), 0, 2), "the address of a summand"},
           {sum(all, all, 2, 2), "rank"},
           {[&] { squared_norms({sums.span(), f, tiles.span()}, nullptr); }, "size of partial"},
           {[&] { squared_norms({sums.span(), f, tiles.span().first(1), b.first(16)}, nullptr); },
            "size of rounded is 16"},
           {[&] { step_scalars({}, nullptr); }, "; expected "},
           {[&] { step_scalars({scalars.span(), window.span(), totals.span(), totals.span(), 0, 1e-3f, 0, 0.9f, 0.95f},
                               nullptr); }, "positions is 0"},
           {[&] { step_scalars({scalars.span(), window.span(), totals.span(), {}, 1, 1e-3f, 0, 0.9f, 0.95f},
                               nullptr); }, "size of rank_sums is 0"},
           {[&] { range_sums({.sums = sums.span(), .partial = sums.span(), .range_start = start.span().first(1)},
                             nullptr); }, "range_start"},
           {[] { onebit_layout(1, 0); }, "the number of ranks is 0"},
           {[] { onebit_layout(1, 1, 12); }, "a multiple of 8"},
           {[] { onebit_layout(1, 1, 8, 2); }, "the bits of an element is 2; expected 1 or 4"},
           {[&] { onebit_quantize({.layout = plan.layout}, nullptr); }, "the bits of an element is 1; expected 4"},
           {[&] { onebit_compress({.layout = plan.layout, .values = t.f}, nullptr); }, "size of error is 0"},
           {[&] { outer_change({f, f, f, tiles.span(), sums.span(), -0.1f}, nullptr); }, "expected 0 or more"},
           {[&] { outer_apply({.layout = plan.layout}, nullptr); }, "bucket is 100; expected a multiple of 32"},
           {[&] { outer_apply({.layout = onebit_layout(64, 2)}, nullptr); }, "learning rates is 0; expected "},
           {[&] { onebit_plan(plan.layout, 48, {}); }, "a multiple of 32"}});
}
