// reduce.cuh - sums and maxima over groups of neighbouring lanes and over a block. Every thread gets the result; the
// order of additions is fixed, so results are deterministic.
#pragma once
#include "kernels/simt/simt.h"

namespace kernels {

using simt::kWarp;
inline constexpr unsigned kAllLanes = 0xffffffffu;

// One running sum per element of a pack: independent additions, which a GPU overlaps and a CPU compiler vectorises.
template <int Size>
struct Partial {
    float element[Size] = {};
    __device__ float& operator[](int i) { return element[i]; }
    __device__ float total() const {
        float sum = 0.0f;
        for (float x : element) sum += x;
        return sum;
    }
};

// Over each group of `Lanes` neighbouring lanes of a warp, a power of two.
template <int Lanes, class Number>
__device__ Number warp_sum(Number x) {
    for (int distance = Lanes / 2; distance > 0; distance /= 2) x += __shfl_xor_sync(kAllLanes, x, distance);
    return x;
}

template <int Lanes>
__device__ float warp_max(float x) {
    for (int distance = Lanes / 2; distance > 0; distance /= 2) x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, distance));
    return x;
}

// Over the `Threads` threads of a one-dimensional block, 1 or whole warps. Ends with a barrier, so it may be
// called again immediately.
template <int Threads, class Number>
__device__ Number block_sum(Number x) {
    if constexpr (Threads == 1) return x;
    else {
        SIMT_SHARED(Number, warp_sums, [kWarp]);
        const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
        x = warp_sum<kWarp>(x);
        if (lane == 0) warp_sums[warp] = x;
        __syncthreads();
        x = warp_sum<kWarp>(lane < Threads / kWarp ? warp_sums[lane] : Number(0));
        __syncthreads();
        return x;
    }
}

template <int Threads>
__device__ float block_max(float x) {
    if constexpr (Threads == 1) return x;
    else {
        SIMT_SHARED(float, warp_maxima, [kWarp]);
        const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
        x = warp_max<kWarp>(x);
        if (lane == 0) warp_maxima[warp] = x;
        __syncthreads();
        x = warp_max<kWarp>(lane < Threads / kWarp ? warp_maxima[lane] : -INFINITY);
        __syncthreads();
        return x;
    }
}

}  // namespace kernels
