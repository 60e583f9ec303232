// rehearsal_test.cpp - a product whose result differs from run to run is found before it is selected
#include "kernels/matmul/rehearsal.h"
#include "test/support/support.h"

using namespace kernels;

TEST_CASE("a product repeats if two runs leave the same bits in its result", "[matmul][tuning]") {
    device::Array<bf16> result(8), other(8);
    int number = 0;
    const auto write = [&](bool changing, bool everywhere) {
        const std::vector<bf16> zeros(8), numbers(8, bf16_from_float(float(++number)));
        result.upload(changing ? numbers : zeros, nullptr);
        other.upload(everywhere ? numbers : zeros, nullptr);
        device::sync(nullptr);
    };
    const auto check = [&](auto op) {
        Rehearsal<decltype(op), int> rehearsal(op, nullptr);
        CHECK(rehearsal.repeats_result([&] { write(false, false); }, nullptr));
        CHECK(rehearsal.repeats_result([&] { write(false, true); }, nullptr));
        CHECK_FALSE(rehearsal.repeats_result([&] { write(true, false); }, nullptr));
    };
    check(LinearForward<bf16>{.out = result.span(), .pre = other.span()});
    check(LinearBackwardInput<bf16>{.din = result.span(), .dout = other.span()});
}
