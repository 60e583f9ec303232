// attention_test.cpp - causal attention compared with fp64, with bounds that propagate float rounding errors through
// the formulas
#include "kernels/attention/attention.h"

#include "kernels/device/memory.h"
#include "test/support/attention_reference.h"

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

TEST_CASE("the reference gradient of attention is the derivative of the reference", "[attention]") {
    const Extents shape{2, 2, 4, 5};
    const auto qkv = normal<double>(3 * shape.elements(), 1), dout = normal<double>(shape.elements(), 2);
    const ForwardReference at_point(shape, qkv);
    const Expected gradient = backward_reference(shape, dout, qkv, at_point.out.value, at_point.logsumexp.value);
    const double step = 1e-5;
    for (std::size_t i = 0; i < qkv.size(); ++i) {
        double loss[2];
        for (int side = 0; side < 2; ++side) {
            auto moved = qkv;
            moved[i] += side ? step : -step;
            loss[side] = dot(ForwardReference(shape, moved).out.value.data(), dout.data(), int(dout.size()));
        }
        // Rounding in fp64 causes an error of about 1e-15 * |loss| / step = 1e-9, the third derivative adds 1e-10.
        CHECK((loss[1] - loss[0]) / (2 * step) == Approx(gradient.value[i]).epsilon(0).margin(1e-8));
    }
}

TEMPLATE_TEST_CASE("attention equals fp64 at every length", "[attention]", float, bf16) {
    // lengths around tile boundaries, one and several tiles
    const int seq_len = GENERATE(1, 2, 31, 32, 33, 63, 64, 65, 100, 129, 257);
    check(PlainRun<TestType>({seq_len < 100 ? 2 : 1, seq_len < 257 ? 3 : 1, 16, seq_len}, 10 + seq_len));
}

TEMPLATE_TEST_CASE("attention equals fp64 at every head size", "[attention]", float, bf16) {
    const int head_size = GENERATE(4, 8, 24, 32, 40, 64, 80, 96, 128, 256);
    if (head_size * sizeof(TestType) % 16 != 0) return;
    check(PlainRun<TestType>({1, 2, head_size, 70}, 400 + head_size));
}

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

TEMPLATE_TEST_CASE("attention does not access memory beyond its tensors", "[attention]", float, bf16) {
    const int seq_len = GENERATE(1, 65);
    check_nothing_beyond_the_ends(PlainRun<TestType>({2, 2, 16, seq_len}, 7));
}

TEMPLATE_TEST_CASE("attention of earlier positions does not depend on later ones", "[attention][large]", float,
                   bf16) {
    check_earlier_positions_are_independent<PlainRun<TestType>>({2, 2, 16, 100}, GENERATE(1, 37, 64, 99));
}

TEMPLATE_TEST_CASE("attention is bit-identical for any number of threads", "[attention][large]", float,
                   bf16) {
    // with three heads some of 2 and of 8 threads are idle
    check_same_bits_on_any_threads(PlainRun<TestType>({1, 3, 16, 150}, 12));
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
        std::string message;
        try {
            kernels::attention_backward<bf16>(changed, nullptr);
        } catch (const Error& error) { message = error.what(); }
        return message;
    };
    CHECK(refused([](auto&) {}).empty());
    CHECK_THAT(refused([](auto& op) { op.head_size = 4; }), Contains("head_size is 4"));  // half a pack of bf16
    CHECK_THAT(refused([](auto& op) { op.dqkv = op.dqkv.first(47); }), Contains("attention's dqkv is 47"));
    CHECK_THAT(refused([](auto& op) { op.dout = op.dout.first(15); }), Contains("attention's dout is 15"));
    CHECK_THAT(refused([](auto& op) { op.out = op.out.first(15); }), Contains("attention's out is 15"));
    CHECK_THAT(refused([](auto& op) { op.qkv = op.qkv.first(47); }), Contains("attention's qkv is 47"));
    CHECK_THAT(refused([](auto& op) { op.logsumexp = op.logsumexp.first(1); }),
               Contains("attention's logsumexp is 1"));
    CHECK_THAT(refused([](auto& op) { op.delta = op.delta.first(1); }), Contains("attention's delta is 1"));
}
