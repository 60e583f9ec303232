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

TEMPLATE_TEST_CASE("attention rejects invalid inputs", "[attention]", float, bf16) {
    check_refused<TestType, Plain>(256);
    const device::Array<float> array(3 * 4 * 260);
    for (const int head_size : {6, 260})
        CHECK_THROWS_WITH(Plain::forward(AttentionForward<float>{array.span(), array.span(), array.span(),
                                                                 {1, 2, 2, head_size}}),
                          Contains("head_size is " + std::to_string(head_size)));
}
