// types.h - the types that kernel contracts use, on any device. Host files include it in every build; no kernel syntax
// here.
#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/base/integers.h"

struct CUstream_st;  // the CUDA runtime's cudaStream_t is a pointer to this

namespace device {

// Work enqueued on one stream runs in order. On a CPU the only stream is nullptr and runs inline.
using StreamRef = CUstream_st*;

}  // namespace device

namespace kernels {

using device::StreamRef;

// Alignment in bytes of every tensor that is passed to a kernel, and of device allocations.
inline constexpr std::size_t kTensorAlignment = 256;

// Storage of a bfloat16; arithmetic happens in float.
struct bf16 { std::uint16_t bits; };

enum class DType { fp32, bf16 };
template <class T> struct DTypeOf { static_assert(sizeof(T) == 0, "tensors are float or kernels::bf16"); };
template <> struct DTypeOf<float> { static constexpr DType value = DType::fp32; };
template <> struct DTypeOf<bf16> { static constexpr DType value = DType::bf16; };
template <class T> inline constexpr DType dtype_of = DTypeOf<T>::value;

// For host code; kernels use to_float and round_to of simt.h, which are hardware instructions on a GPU.
constexpr float bf16_to_float(bf16 x) { return std::bit_cast<float>(std::uint32_t(x.bits) << 16); }
constexpr bf16 bf16_from_float(float x) {  // to nearest, ties to even; every NaN becomes one quiet NaN
    const auto bits = std::bit_cast<std::uint32_t>(x);
    return {std::uint16_t(x != x ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}

// Storage of 8-bit floating-point numbers, as in OCP's OFP8: kMantissa bits of mantissa, exponents biased by kBias,
// finite values up to kLargest. e4m3 has no infinity. Rounding: kernels/fp8.cuh.
struct e4m3 {
    static constexpr int kMantissa = 3, kBias = 7;
    static constexpr float kLargest = 448;
    std::uint8_t bits;
};
struct e5m2 {
    static constexpr int kMantissa = 2, kBias = 15;
    static constexpr float kLargest = 57344;
    std::uint8_t bits;
};
template <class T> inline constexpr bool is_fp8 = false;
template <> inline constexpr bool is_fp8<e4m3> = true;
template <> inline constexpr bool is_fp8<e5m2> = true;

template <class T> constexpr float fp8_to_float(T x) {
    constexpr int kExponents = 0x7f >> T::kMantissa;  // the largest exponent
    const int exponent = x.bits >> T::kMantissa & kExponents;
    std::uint32_t mantissa = x.bits & ((1 << T::kMantissa) - 1);
    const bool is_finite = T::kMantissa == 3 ? (x.bits & 0x7f) != 0x7f : exponent != kExponents;
    const std::uint32_t sign = std::uint32_t(x.bits & 0x80) << 24, power = is_finite ? exponent - T::kBias + 127 : 255;
    const float one = std::bit_cast<float>(sign | power << 23 | mantissa << (23 - T::kMantissa));
    if (exponent > 0) return one;
    const float unit = std::bit_cast<float>(sign | std::uint32_t(128 - T::kBias - T::kMantissa) << 23);
    return unit * float(mantissa);
}

// A position with this target has no loss and an exactly zero gradient.
inline constexpr int kIgnoreTarget = -1;

}  // namespace kernels
