// math_test.cu - the error bounds stated in math.cuh, compared with libm in double, and values that must be exact
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/math.cuh"
#include "test/support/catch.h"

namespace {

using kernels::fast_exp;

constexpr float kInfinity = std::numeric_limits<float>::infinity(), kNaN = std::numeric_limits<float>::quiet_NaN();

// Visits every `stride`-th representable float of [from, to], and both ends. from and to have the same sign.
template <class Visit>
void for_each_float(float from, float to, std::uint32_t stride, Visit visit) {
    const std::uint32_t sign = std::signbit(to) ? 0x80000000u : 0;
    std::uint32_t low = std::bit_cast<std::uint32_t>(std::fabs(from)),
                  high = std::bit_cast<std::uint32_t>(std::fabs(to));
    if (low > high) std::swap(low, high);
    for (std::uint32_t bits = low; bits < high; bits += stride) visit(std::bit_cast<float>(bits | sign));
    visit(std::bit_cast<float>(high | sign));
}

double largest_relative_error_of_exp(float from, float to, std::uint32_t stride) {
    double largest = 0;
    for_each_float(from, to, stride, [&](float x) {
        const double want = std::exp(double(x)), error = std::fabs(fast_exp(x) - want) / want;
        largest = std::max(largest, std::isnan(error) ? INFINITY : error);
    });
    return largest;
}

TEST_CASE("fast_exp is within 3e-7 of exp for |x| <= 87", "[math][one_order]") {
    // A stride of 61 takes 137518 samples from each power of two.
    CHECK(largest_relative_error_of_exp(-87.0f, -0x1p-6f, 61) <= 3e-7);
    CHECK(largest_relative_error_of_exp(0x1p-6f, 87.0f, 61) <= 3e-7);
    // Closer to 0 the result is 1 + x in float precision.
    CHECK(largest_relative_error_of_exp(-0x1p-6f, -0.0f, 9973) <= 3e-7);
    CHECK(largest_relative_error_of_exp(0.0f, 0x1p-6f, 9973) <= 3e-7);
    // Up to 88 the bound still holds; beyond, the result stays constant and finite.
    CHECK(largest_relative_error_of_exp(87.0f, 88.0f, 1) <= 3e-7);
    // -87.3 is the smallest argument whose result is not 0; the result is still a normal number.
    CHECK(largest_relative_error_of_exp(-87.3f, -87.0f, 1) <= 3e-7);
}

TEST_CASE("fast_exp at the ends of its range", "[math][one_order]") {
    CHECK(fast_exp(0.0f) == 1.0f);
    CHECK(fast_exp(-0.0f) == 1.0f);
    CHECK(fast_exp(std::nextafter(-87.3f, -kInfinity)) == 0.0f);
    CHECK(fast_exp(-88.0f) == 0.0f);
    CHECK(fast_exp(-1e30f) == 0.0f);
    CHECK(fast_exp(-kInfinity) == 0.0f);
    CHECK(fast_exp(1e30f) == fast_exp(88.0f));
    CHECK(fast_exp(kInfinity) == fast_exp(88.0f));
    CHECK(std::isfinite(fast_exp(kInfinity)));
    // Also NaN with a payload, which the bit arithmetic could turn into a number.
    for (std::uint32_t bits :
         {0x7fc00000u, 0xffc00000u, 0x7fc00001u, 0xffc00001u, 0x7f800001u, 0x7fffffffu, 0xffffffffu}) {
        CAPTURE(bits);
        CHECK(std::isnan(fast_exp(std::bit_cast<float>(bits))));
    }
}

// The compiler may vectorise a loop over fast_exp; the result must be bit-identical.
TEST_CASE("fast_exp is bit-identical in a loop and alone", "[math][one_order]") {
    std::vector<float> in, out;
    for (float x = -90; x < 90; x += 0.01f) in.push_back(x);
    in.push_back(kNaN);
    out.resize(in.size());
    for (std::size_t i = 0; i < in.size(); ++i) out[i] = fast_exp(in[i]);
    for (std::size_t i = 0; i < in.size(); ++i) {
        volatile float alone = in[i];
        REQUIRE(std::bit_cast<std::uint32_t>(out[i]) == std::bit_cast<std::uint32_t>(fast_exp(alone)));
    }
}

}  // namespace
