// outlier_window.cuh - a block computes mean and deviation of a window; add_step() appends a step to it
#pragma once
#include <cmath>

#include "kernels/outlier_window.h"
#include "kernels/reduce.cuh"

namespace kernels {

struct WindowSpread {
    double mean = NAN, deviation = NAN;  // NaN: the window is not full
    __device__ double z_score(double x) const { return deviation > 0 ? (x - mean) / deviation : NAN; }
};

// `values`: window.losses or window.norms. All `Threads` threads of the block must call it; no thread may add to the
// window before all have read it.
template <int Threads>
__device__ WindowSpread window_spread(const OutlierWindow& window, const double (&values)[OutlierWindow::kSize]) {
    constexpr int kSize = OutlierWindow::kSize;
    if (window.count < kSize) return {};
    const auto by_age = [&](int i) { return values[(window.next + i) % kSize]; };  // oldest first
    double sum = 0;
    for (int i = threadIdx.x; i < kSize; i += Threads) sum += by_age(i);
    const double mean = block_sum<Threads>(sum) / kSize;
    double squares = 0;
    for (int i = threadIdx.x; i < kSize; i += Threads) squares += (by_age(i) - mean) * (by_age(i) - mean);
    const double deviation = sqrt(block_sum<Threads>(squares) / kSize);
    return {mean, fmax(deviation, OutlierWindow::kMinDeviation * fabs(mean))};
}

__device__ inline void add_step(OutlierWindow& window, double loss, double norm) {
    window.losses[window.next] = loss;
    window.norms[window.next] = norm;
    window.next = (window.next + 1) % OutlierWindow::kSize;
    if (window.count < OutlierWindow::kSize) window.count += 1;
}

}  // namespace kernels
