// math.cuh - exp in a few instructions, and products that are rounded before they are added, on both devices
//
// On a CPU exp is a branch-free polynomial, so that loops over it vectorise (libm calls do not); never compile it with
// -ffast-math, which optimises the rounding trick away. On a GPU it is the hardware's approximation.
//
// Error of exp, checked in test/kernels/math_test.cu: 3e-7 relative for |x| <= 87 (on a GPU: 2 + |x| units in the last
// place), and 0 below -87.3, so that masked scores become 0.
#pragma once
#include "kernels/simt/simt.h"

namespace kernels {

#if defined(TRAIN_GPT2_CUDA)

__device__ __forceinline__ float fast_exp(float x) { return __expf(x); }

#else

__forceinline__ float fast_exp(float x) {
    constexpr float kLowest = -87.3f, kHighest = 88.0f;
    constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
    const float clamped = x < kLowest ? kLowest : x > kHighest ? kHighest : x;
    const float biased = clamped * 1.44269504f + kRound;
    const float power = biased - kRound;
    // x - power * ln 2, with ln 2 split into two constants (Cody, Waite)
    const float rest = (clamped - power * 0.693359375f) + power * 2.12194440e-4f;
    float series = 1.9875691500e-4f;
    series = series * rest + 1.3981999507e-3f;
    series = series * rest + 8.3334519073e-3f;
    series = series * rest + 4.1665795894e-2f;
    series = series * rest + 1.6666665459e-1f;
    series = series * rest + 5.0000001201e-1f;
    series = series * rest * rest + rest + 1.0f;
    // wraps around for NaN
    const float result = std::bit_cast<float>(std::bit_cast<std::uint32_t>(series) +
                                              (std::bit_cast<std::uint32_t>(biased) << 23));
    return x < kLowest ? 0.0f : x != x ? x : result;
}

#endif

// a * b rounded to float, where results must be bit-identical on every device: compilers contract a * b + c to a fused
// multiply-add, which rounds only once. Construct it before a loop.
class RoundedProduct {
public:
#if defined(TRAIN_GPT2_CUDA)
    __device__ float operator()(float a, float b) const { return __fmul_rn(a, b); }
#else
    RoundedProduct() { asm("" : "+r"(zero_)); }  // hides from the compiler that it is 0
    float operator()(float a, float b) const {
        return std::bit_cast<float>(std::bit_cast<std::uint32_t>(a * b) ^ zero_);
    }

private:
    std::uint32_t zero_ = 0;
#endif
};

}  // namespace kernels
