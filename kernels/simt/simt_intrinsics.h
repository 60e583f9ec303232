// simt_intrinsics.h - CUDA's built-in functions for a single thread: mathematics, bits, cache hints; and to_float /
// round_to
#pragma once
#include <bit>
#include <cmath>
#include <type_traits>

#include "kernels/device/types.h"
#include "kernels/simt/simt_language.h"

__forceinline__ float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
__forceinline__ float __fdividef(float x, float y) { return x / y; }
__forceinline__ float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
__forceinline__ unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
// Four of the eight bytes of y:x, each selected by four bits.
__forceinline__ unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
    const std::uint64_t bytes = std::uint64_t(y) << 32 | x;
    unsigned result = 0;
    for (int i = 0; i < 4; ++i) result |= unsigned(bytes >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
    return result;
}

// A cache hint: a plain access on the host.
template <class T> __forceinline__ void __stcs(T* address, std::type_identity_t<T> value) { *address = value; }

namespace kernels {

__forceinline__ float to_float(float x) { return x; }
__forceinline__ float to_float(bf16 x) { return bf16_to_float(x); }
template <class T> __forceinline__ T round_to(float x) {  // nearest, ties to even; NaN stays NaN
    if constexpr (std::is_same_v<T, bf16>) return bf16_from_float(x);
    else return x;
}

}  // namespace kernels
