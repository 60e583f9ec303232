// outlier_window.h - the losses and gradient norms of the last steps that made an update, by which one that lies far
// above them is known
//
//   mean = sum x_i / N;  deviation = max(sqrt(sum (x_i - mean)^2 / N), kLeastDeviation |mean|);  N = kSize
//   z = (x - mean) / deviation of the step at hand, x not among the x_i; NaN, which is no outlier, until N steps are
//       held, and where the deviation is 0, as all of them were 0
//
// A window lies on the device from step to step, one on each rank, with the same bits, as all fill it from the same
// sums. Only steps that make an update enter (grad_norm.h), so nothing that is not finite, and no outlier.
//
// Numerics  in double, anew in each step from the values held, by their age: no running sum that could drift, and a
//           window that was saved and loaded goes on with the same bits, wherever in it the oldest value lies.
// Traffic   2 KiB a step.
// Source    llm.c llmc/outlier_detector.h has the size, decides nothing either until it is filled, and counts the step
//           at hand among the N.
#pragma once
#include <cstdint>

namespace kernels {

struct OutlierWindow {
    static constexpr int kSize = 128;
    // What rounding alone may do to a norm (grad_norm.h) and more than it does to a loss: steps that were the same but
    // for rounding make no outlier of the next one.
    static constexpr double kLeastDeviation = 1e-6;

    std::int32_t count = 0;  // how many are held
    std::int32_t next = 0;   // where the next one goes: the place of the oldest, once the window is full
    double losses[kSize] = {}, norms[kSize] = {};  // of the same steps; norms before clipping
};

}  // namespace kernels
