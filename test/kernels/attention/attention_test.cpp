// attention_test.cpp - causal attention with scores in the thousands, with bounds that propagate float rounding errors
// through the formulas; causality; rejected inputs (the rest: operations/attention.cpp)
#include "kernels/attention/attention.h"

#include "kernels/device/memory.h"
#include "test/support/attention_reference.h"
#include "test/support/scratch_folder.h"

using namespace test;
using namespace test::attention;

namespace {

struct Plain {
    template <class T> static void forward(const AttentionForward<T>& op) {
        kernels::attention_forward<T>(op, nullptr);
    }
    template <class T> static void backward(const AttentionBackward<T>& op) {
        kernels::attention_backward<T>(op, nullptr);
    }
};
template <class T> using PlainRun = Run<T, Plain>;

// Checks that every element is within its bound plus, because the result is stored in T, half a unit in the last place
// at the farther end of the bound.
template <class T>
void check_within_bounds(const std::vector<T>& got, const Expected& want) {
    REQUIRE(got.size() == want.value.size());
    std::size_t worst = 0;
    double worst_ratio = -1;
    for (std::size_t i = 0; i < got.size(); ++i) {
        const double allowed = want.bound[i] + 0.5 * ulp<T>(std::fabs(want.value[i]) + want.bound[i]) + 1e-37;
        const double ratio = std::fabs(widen(got[i]) - want.value[i]) / allowed;
        if (!(ratio <= worst_ratio)) worst = i, worst_ratio = std::isnan(ratio) ? INFINITY : ratio;
    }
    INFO("element " << worst << " is " << widen(got[worst]) << ", want " << want.value[worst] << " within "
                    << want.bound[worst]);
    CHECK(worst_ratio <= 1);
}

template <class T>
void check(const PlainRun<T>& run) {
    const Extents& shape = run.shape;
    CAPTURE(shape);
    const ForwardReference reference(shape, widen(run.qkv));
    const auto got = run.forward(), kept = run.rounded(reference);
    check_within_bounds(got.out, reference.out);
    check_within_bounds(got.logsumexp, reference.logsumexp);
    check_within_bounds(run.backward(kept), backward_reference(shape, widen(run.dout), widen(run.qkv), widen(kept.out),
                                                               widen(kept.logsumexp)));
}

}  // namespace

TEMPLATE_TEST_CASE("attention is correct with scores in the thousands", "[attention][large]", float, bf16) {
    const int seq_len = GENERATE(1, 97);
    const PlainRun<TestType> run({1, 6, 64, seq_len}, 31, 30.0);
    const ForwardReference reference(run.shape, widen(run.qkv));
    REQUIRE(largest_magnitude(reference.logsumexp.value) > 1000);
    check(run);
}

TEMPLATE_TEST_CASE("attention at the first position is the first value", "[attention]", float, bf16) {
    check_first_position_is_first_value(PlainRun<TestType>({2, 3, 16, 40}, 5));
}

TEMPLATE_TEST_CASE("attention of earlier positions does not depend on later ones", "[attention][large]", float,
                   bf16) {
    check_earlier_positions_are_independent<PlainRun<TestType>>({2, 2, 16, 100}, GENERATE(1, 37, 64, 99));
}

TEST_CASE("attention rejects invalid inputs", "[attention]") {
    const auto forward = [](int batch, int seq_len, int heads, int head_size, int short_out = 0,
                            int short_logsumexp = 0, int short_qkv = 0) {
        const device::Array<float> out(8 * 260), logsumexp(8), qkv(3 * 8 * 260);
        const std::size_t rows = std::size_t(batch) * seq_len * heads, elements = rows * head_size;
        kernels::attention_forward<float>(
            {out.span().first(elements - short_out), logsumexp.span().first(rows - short_logsumexp),
             qkv.span().first(3 * elements - short_qkv), batch, seq_len, heads, head_size},
            nullptr);
    };
    CHECK_NOTHROW(forward(1, 2, 2, 256));
    CHECK_THROWS_WITH(forward(1, 2, 2, 260), Contains("head_size is 260"));
    CHECK_THROWS_WITH(forward(1, 2, 2, 6), Contains("head_size is 6"));
    CHECK_THROWS_WITH(forward(1, 2, 2, 0), Contains("head_size is 0"));
    CHECK_THROWS_WITH(forward(1, 0, 2, 8), Contains("seq_len is 0"));
    CHECK_THROWS_WITH(forward(0, 2, 2, 8), Contains("batch is 0"));
    CHECK_THROWS_WITH(forward(1, 2, 0, 8), Contains("heads is 0"));
    CHECK_THROWS_WITH(forward(1, 2, 2, 8, 1), Contains("attention's out is 31"));
    CHECK_THROWS_WITH(forward(1, 2, 2, 8, 0, 1), Contains("attention's logsumexp is 3"));
    CHECK_THROWS_WITH(forward(1, 2, 2, 8, 0, 0, 1), Contains("attention's qkv is 95"));

    const device::Array<bf16> qkv(3 * 16), dqkv(3 * 16), dout(16), out(16);
    const device::Array<float> logsumexp(2), delta(2);
    AttentionBackward<bf16> op{dqkv.span(), delta.span(), dout.span(), qkv.span(), out.span(), logsumexp.span(), 1, 2,
                               1, 8};
    const auto refused = [&](auto change) {
        AttentionBackward<bf16> changed = op;
        change(changed);
        return error_of([&] { kernels::attention_backward<bf16>(changed, nullptr); });
    };
    CHECK(refused([](auto&) {}) == "accepted");
    CHECK_THAT(refused([](auto& op) { op.head_size = 4; }), Contains("head_size is 4"));  // half a pack of bf16
    CHECK_THAT(refused([](auto& op) { op.dqkv = op.dqkv.first(47); }), Contains("attention's dqkv is 47"));
    CHECK_THAT(refused([](auto& op) { op.dout = op.dout.first(15); }), Contains("attention's dout is 15"));
    CHECK_THAT(refused([](auto& op) { op.out = op.out.first(15); }), Contains("attention's out is 15"));
    CHECK_THAT(refused([](auto& op) { op.qkv = op.qkv.first(47); }), Contains("attention's qkv is 47"));
    CHECK_THAT(refused([](auto& op) { op.logsumexp = op.logsumexp.first(1); }),
               Contains("attention's logsumexp is 1"));
    CHECK_THAT(refused([](auto& op) { op.delta = op.delta.first(1); }), Contains("attention's delta is 1"));
}
