// fp8_test.cu - all values of the 8-bit floats, and the rounding of kernels to them (of tensors: operations/fp8.cpp)
#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/fp8.cuh"
#include "test/support/support.h"

namespace {

using namespace kernels;
using namespace test;

// 2^(exponent - bias) (1 + mantissa / 2^kMantissa), or without the 1 if the exponent is 0.
template <class T> double definition(int code) {
    const int exponent = (code & 0x7f) >> T::kMantissa, mantissa = code & ((1 << T::kMantissa) - 1);
    const double fraction = (exponent > 0) + std::ldexp(double(mantissa), -T::kMantissa);
    return std::copysign(std::ldexp(fraction, std::max(exponent, 1) - T::kBias), code < 128 ? 1 : -1);
}
template <class T> int largest_code() { return std::is_same_v<T, e4m3> ? 0x7e : 0x7b; }

template <class T> void check_rounding(float x, int want) {
    CAPTURE(x, want);
    CHECK(round_to_fp8<T>(x).bits == want);
    CHECK(round_to_fp8<T>(-x).bits == (want | 0x80));
    CHECK(fp8_pair<T>(x, -x) == (want | (want | 0x80) << 8));
}

}  // namespace

TEMPLATE_TEST_CASE("8-bit floats have the values of their definition", "[fp8][one_order]", e4m3, e5m2) {
    for (int code = 0; code < 256; ++code) {
        const float got = fp8_to_float(TestType{std::uint8_t(code)});
        CAPTURE(code);
        const float want = float(definition<TestType>(code));
        const bool is_finite = (code & 0x7f) <= largest_code<TestType>();
        CHECK(std::isfinite(got) == is_finite);
        if (is_finite) CHECK(std::bit_cast<std::uint32_t>(got) == std::bit_cast<std::uint32_t>(want));
        else CHECK(std::isinf(got) == (std::is_same_v<TestType, e5m2> && (code & 0x7f) == 0x7c));
    }
    CHECK(TestType::kLargest == definition<TestType>(largest_code<TestType>()));
}

TEMPLATE_TEST_CASE("rounding to 8-bit floats is to nearest, ties to even, and saturates", "[fp8][one_order]", e4m3,
                   e5m2) {
    const int largest = largest_code<TestType>();
    for (int code = 0; code < largest; ++code) {
        const float low = float(definition<TestType>(code)), high = float(definition<TestType>(code + 1)),
                    tie = (low + high) / 2;
        check_rounding<TestType>(low, code);
        check_rounding<TestType>(tie, code + code % 2);
        check_rounding<TestType>(std::nextafter(tie, 0.0f), code);
        check_rounding<TestType>(std::nextafter(tie, INFINITY), code + 1);
        CHECK(narrow<TestType>(tie).bits == code + code % 2);  // the reference of other tests
    }
    for (const float x : {1.0f, 1.06f, 1.2f, 1e9f}) check_rounding<TestType>(TestType::kLargest * x, largest);
    check_rounding<TestType>(INFINITY, largest);
    check_rounding<TestType>(1e-40f, 0);
    CHECK(round_to_fp8<TestType>(NAN).bits == 0x7f);
    CHECK(round_to_fp8<TestType>(-NAN).bits == 0x7f);
}
