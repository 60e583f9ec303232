// attention_test.cpp - attention is causal, and within documents, to the last bit (the rest: operations/attention.cpp)
#include "kernels/attention/attention.h"

#include "kernels/attention/implementations.h"
#include "test/support/support.h"

using namespace test;
using kernels::Attention, kernels::AttentionMethod, kernels::AttentionShape;

namespace {

template <class T> struct Passes {
    std::vector<T> out, dqkv;
};
// Both passes; positions from `changed` on have other, huge values: of whole rows so large that their scores overflow.
template <class T>
Passes<T> run(AttentionMethod method, AttentionShape shape, int changed, const std::vector<int>& starts = {}) {
    shape.documents = !starts.empty();
    const bool only = kernels::attention_methods().size() == 1;  // on a CPU it cannot be named
    Attention attention({.method = only ? AttentionMethod::automatic : method});
    auto qkv = normal<T>(3 * shape.elements(), 6), dout = normal<T>(shape.elements(), 7);
    const auto other = normal<T>(qkv.size(), 8, starts.empty() ? 1e34 : 1e3), other_dout = normal<T>(dout.size(), 9);
    const std::size_t first = shape.elements() / shape.seq_len * std::size_t(changed);
    std::copy(other.begin() + std::ptrdiff_t(3 * first), other.end(), qkv.begin() + std::ptrdiff_t(3 * first));
    std::copy(other_dout.begin() + std::ptrdiff_t(first), other_dout.end(), dout.begin() + std::ptrdiff_t(first));
    const auto in = on_device(qkv), dout_there = on_device(dout), out = poisoned<T>(dout.size()),
               dqkv = poisoned<T>(qkv.size());
    const auto first_keys = on_device(starts);
    const auto logsumexp = poisoned<float>(shape.rows()), delta = poisoned<float>(shape.rows());
    attention.forward<T>({out.span(), logsumexp.span(), in.span(), shape, first_keys.span()}, nullptr);
    attention.backward<T>({dqkv.span(), delta.span(), dout_there.span(), in.span(), out.span(), logsumexp.span(),
                           shape, first_keys.span()}, nullptr);
    return {out.download(nullptr), dqkv.download(nullptr)};
}

}  // namespace

TEMPLATE_TEST_CASE("attention of earlier positions does not depend on later ones", "[attention][large]", float, bf16) {
    const AttentionShape shape{1, 140, 2, 64};
    const int changed = GENERATE(1, 64, 129);
    for (const AttentionMethod method : kernels::attention_methods()) {
        if (method == AttentionMethod::cudnn || (method == AttentionMethod::flash && sizeof(TestType) == 4)) continue;
        CAPTURE(int(method), changed);
        const auto before = run<TestType>(method, shape, shape.seq_len), after = run<TestType>(method, shape, changed);
        const std::size_t row = std::size_t(shape.heads) * shape.head_size;
        for (std::size_t t = 0; t < std::size_t(shape.seq_len); ++t) {
            const auto same = [&](const auto& a, const auto& b, std::size_t at) {
                return same_bits(std::span(a).subspan(at, row), std::span(b).subspan(at, row));
            };
            CAPTURE(t);
            // dq; dk and dv have a part from every later query
            REQUIRE((same(before.out, after.out, t * row) && same(before.dqkv, after.dqkv, 3 * t * row)) ==
                    (t < std::size_t(changed)));
        }
    }
}

TEMPLATE_TEST_CASE("attention within documents does not depend on others, nor on how many there are",
                   "[attention][documents][large]", float, bf16) {
    const AttentionShape shape{1, 140, 2, 64};
    const std::size_t row = std::size_t(shape.heads) * shape.head_size;
    const int second = GENERATE(1, 64, 100);  // start of the second document
    for (const AttentionMethod method : kernels::attention_methods()) {
        if (method == AttentionMethod::cudnn || (method == AttentionMethod::flash && sizeof(TestType) == 4)) continue;
        CAPTURE(int(method), second);
        const auto whole = run<TestType>(method, shape, shape.seq_len);
        std::vector<int> starts(std::size_t(shape.seq_len));
        const auto one = run<TestType>(method, shape, shape.seq_len, starts);
        CHECK((same_bits(one.out, whole.out) && same_bits(one.dqkv, whole.dqkv)));
        std::fill(starts.begin() + second, starts.end(), second);
        const auto two = run<TestType>(method, shape, shape.seq_len, starts),
                   changed = run<TestType>(method, shape, second, starts);
        const auto end = row * std::size_t(second);
        CHECK(same_bits(std::span(two.out).first(end), std::span(changed.out).first(end)));
        CHECK(same_bits(std::span(two.dqkv).first(3 * end), std::span(changed.dqkv).first(3 * end)));
        CHECK(same_bits(std::span(two.out).first(end), std::span(whole.out).first(end)));
        CHECK(!same_bits(two.out, whole.out));
    }
}
