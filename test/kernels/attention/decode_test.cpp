// decode_test.cpp - rejected inputs of the cache kernels and of products of few rows (the rest: operations/decode.cpp
// and linear.cpp)
#include "kernels/attention/decode.h"

#include "kernels/matmul/few_rows.h"
#include "test/support/scratch_folder.h"
#include "test/support/support.h"

using test::Contains;
using kernels::bf16;

TEST_CASE("attention to a cache rejects invalid inputs", "[decode][one_order]") {
    const auto cache = test::poisoned<float>(2 * 3 * 10 * 16), qkv = test::poisoned<float>(2 * 3 * 3 * 16),
               out = test::poisoned<float>(2 * 3 * 16);
    kernels::DecodeAttention<float> op{.out = out.span(), .scratch = {}, .qkv = qkv.span(), .keys = cache.span(),
                                       .values = cache.span(), .batch = 2, .first = 9, .count = 1, .capacity = 10,
                                       .heads = 3, .head_size = 16};
    const auto refusal = [&](auto change) {
        auto changed = op;
        change(changed);
        return test::error_of([&] { kernels::decode_attention(changed, nullptr); });
    };
    CHECK_THAT(refusal([](auto& x) { x.first = 10; }), Contains("first new position is 10") && Contains("fit into 10"));
    CHECK_THAT(refusal([](auto& x) { x.first = -1; }), Contains("is -1"));
    CHECK_THAT(refusal([](auto& x) { x.count = 0; }), Contains("number of new positions is 0"));
    CHECK_THAT(refusal([](auto& x) { x.batch = 0; }), Contains("batch of a cache is 0"));
    CHECK_THAT(refusal([](auto& x) { x.heads = 0; }), Contains("heads of a cache is 0"));
    CHECK_THAT(refusal([](auto& x) { x.head_size = 6; }),
               Contains("head_size of a cache is 6; expected a multiple of 4"));
    CHECK_THAT(refusal([](auto& x) { x.head_size = 260; }), Contains("at most 256"));
    CHECK_THAT(refusal([](auto& x) { x.out = x.out.first(95); }), Contains("size of out is 95"));
    CHECK_THAT(refusal([](auto& x) { x.qkv = x.qkv.first(287); }), Contains("size of qkv is 287"));
    CHECK_THAT(refusal([](auto& x) { x.keys = x.keys.first(959); }), Contains("size of keys is 959"));
    CHECK_THAT(refusal([](auto& x) { x.values = x.values.first(959); }), Contains("size of values is 959"));
    const auto longer = test::poisoned<float>(2 * 3 * 4096 * 16);
    CHECK_THAT(refusal([&](auto& x) {
                   x.keys = x.values = longer.span();
                   x.first = 4095, x.capacity = 4096, x.batch = 1, x.heads = 1;
               }), kernels::decode_attention_scratch(1, 1, 4096, 1, 16) ? Contains("size of scratch is 0")
                                                                          : Contains("accepted"));
}

TEMPLATE_TEST_CASE("a product of few rows rejects more than four rows", "[few_rows][one_order]", float, bf16) {
    const auto in = test::poisoned<TestType>(5 * 16), weight = test::poisoned<TestType>(16 * 16),
               out = test::poisoned<TestType>(5 * 16);
    CHECK_THROWS_WITH(kernels::few_rows_forward<TestType>({out.span(), {}, in.span(), weight.span(), {}, 5, 16, 16},
                                                          nullptr),
                      Contains("few rows is 5; expected 1 to 4"));
    CHECK_THROWS_WITH(kernels::few_rows_forward<TestType>({out.span().first(31), {}, in.span(), weight.span(), {}, 2,
                                                           16, 16}, nullptr),
                      Contains("size of out is 31"));
}
