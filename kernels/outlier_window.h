// outlier_window.h - the losses and gradient norms of the most recent updates, to detect steps far above them
//
//   mean = sum x_i / N;  deviation = max(sqrt(sum (x_i - mean)^2 / N), kMinDeviation |mean|);  N = kSize
//   z = (x - mean) / deviation for the current step, which is not one of the x_i; NaN, which is not an outlier, until
//       the window holds N steps, and if the deviation is 0 (all values are 0)
//
// The window stays on the device from step to step. The ranks' windows are bit-identical, because all ranks fill them
// from the same sums. Only steps that make an update enter (grad_norm.h): never a non-finite value or an outlier.
//
// Numerics  in double, recomputed in each step from the stored values, oldest first: there is no running sum that could
//           drift, and a window that is saved and loaded continues bit-identically, whatever the index of its oldest
//           value.
// Traffic   2 KiB per step.
// Source    llm.c llmc/outlier_detector.h has the same size and also decides nothing until it is full; it counts the
//           current step among the N.
#pragma once
#include <cstdint>

namespace kernels {

struct OutlierWindow {
    static constexpr int kSize = 128;
    // The effect of rounding on a norm (grad_norm.h), and more than its effect on a loss: after steps that differ only
    // by rounding, the next step is not an outlier.
    static constexpr double kMinDeviation = 1e-6;

    std::int32_t count = 0;  // number of steps in the window
    std::int32_t next = 0;   // index of the next step to write: the oldest one, once the window is full
    double losses[kSize] = {}, norms[kSize] = {};  // of the same steps; norms before clipping
};

}  // namespace kernels
