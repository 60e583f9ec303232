// fp8.cuh - rounding of floats to 8-bit floats in kernels: to nearest, ties to even; magnitudes above the largest
// finite value become that one, NaN becomes 0x7f
#pragma once
#include "kernels/pack.cuh"

namespace kernels {

// One value, by integer arithmetic: branch-free, so that a CPU compiler vectorizes a loop.
template <class T> __device__ __forceinline__ T round_to_fp8(float x) {
    constexpr int kShift = 23 - T::kMantissa;
    // The last bit of this number has the weight of the smallest subnormal number: adding it rounds to a multiple.
    constexpr unsigned kUnit = unsigned(127 + 24 - T::kBias - T::kMantissa) << 23;
    constexpr unsigned kSmallestNormal = unsigned(128 - T::kBias) << 23;
    const float magnitude = fabsf(x) < T::kLargest ? fabsf(x) : T::kLargest;
    const unsigned bits = __float_as_uint(magnitude);
    const unsigned even = (1u << (kShift - 1)) - 1 + (bits >> kShift & 1);
    const unsigned normal = ((bits + even) >> kShift) - (unsigned(127 - T::kBias) << T::kMantissa);
    const unsigned subnormal = __float_as_uint(magnitude + __uint_as_float(kUnit)) - kUnit;
    const unsigned rounded = bits < kSmallestNormal ? subnormal : normal;
    return {std::uint8_t(x != x ? 0x7f : (__float_as_uint(x) >> 24 & 0x80) | rounded)};
}

// Two values, the first in the lower byte; one instruction on GPUs that have it.
template <class T> __device__ __forceinline__ unsigned short fp8_pair(float low, float high) {
#if defined(TRAIN_GPT2_CUDA) && __CUDA_ARCH__ >= 890
    unsigned short pair;
    if constexpr (T::kMantissa == 3)
        asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
    else asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
    return pair;
#else
    return (unsigned short)(round_to_fp8<T>(low).bits | round_to_fp8<T>(high).bits << 8);
#endif
}

template <class T, int Size> __device__ __forceinline__ Pack<T, Size> fp8_pack(const float (&x)[Size]) {
    if constexpr (simt::gpu_geometry) {
        Pack<unsigned short, Size> pairs;
        for (int k = 0; k < pairs.size; ++k) pairs[k] = fp8_pair<T>(x[2 * k], x[2 * k + 1]);
        return std::bit_cast<Pack<T, Size>>(pairs);
    } else {
        Pack<T, Size> pack;
        for (int k = 0; k < Size; ++k) pack[k] = round_to_fp8<T>(x[k]);
        return pack;
    }
}

}  // namespace kernels
