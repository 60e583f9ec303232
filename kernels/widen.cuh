// widen.cuh - converts a pack's elements to floats and back, two bf16 elements at a time on a GPU
//
// Converting single elements, nvcc emits three instructions for the upper half of a register and two for each rounded
// element (sm_90a); a shift or a mask, and one conversion of a pair, are enough. A CPU compiler vectorises to_float and
// round_to, so CPU code loops over them in the kernels.
#pragma once
#include "kernels/pack.cuh"
#include "kernels/ptx.cuh"

namespace kernels {

// The two bf16 elements of a register.
__device__ __forceinline__ float lower_element(unsigned pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float upper_element(unsigned pair) { return __uint_as_float(pair & 0xffff0000u); }

template <class T, int Bytes>
__device__ __forceinline__ void widen(const Pack<T, Bytes>& pack, float (&x)[Bytes / sizeof(T)]) {
    if constexpr (simt::gpu_geometry && sizeof(T) == sizeof(bf16)) {
        const auto pairs = std::bit_cast<Pack<unsigned, Bytes>>(pack);
        for (int k = 0; k < pairs.size; ++k) {
            x[2 * k] = lower_element(pairs[k]);
            x[2 * k + 1] = upper_element(pairs[k]);
        }
    } else {
        for (int k = 0; k < pack.size; ++k) x[k] = to_float(pack[k]);
    }
}

// Rounds to nearest, like round_to.
template <class T, int Size>
__device__ __forceinline__ Pack<T, Size * int(sizeof(T))> rounded_pack(const float (&x)[Size]) {
    if constexpr (simt::gpu_geometry && sizeof(T) == sizeof(bf16)) {
        Pack<unsigned, Size * int(sizeof(T))> pairs;
        for (int k = 0; k < pairs.size; ++k) pairs[k] = bf16_pair(x[2 * k], x[2 * k + 1]);
        return std::bit_cast<Pack<T, Size * int(sizeof(T))>>(pairs);
    } else {
        Pack<T, Size * int(sizeof(T))> pack;
        for (int k = 0; k < Size; ++k) pack[k] = round_to<T>(x[k]);
        return pack;
    }
}

}  // namespace kernels
