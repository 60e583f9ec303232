// outer.h - the outer step of DiLoCo in fp32: workers that train alone for some steps move to a common point
//
//   outer_change: values = master, which the workers add up to `sums`; the squared norm of master - anchor
//   outer_mean:   y = p - anchor, p = sums / workers; the squared norm of y
//   outer_update: u = mu * u + y;  anchor = p + ((lr - 1) * y + (lr * mu) * u)
//                 master = anchor;  parameter = rounded master
//
// The update is torch.optim.SGD(lr, momentum=mu, nesterov=True) on the gradient -y, anchor + lr * (y + mu * u), in a
// form that is exact for lr = 1 and mu = 0: then anchor = p, bit for bit. If the norm of y is not finite, the worker
// returns to the anchor: master = anchor, parameter = rounded master, and anchor and u do not change.
//
// Shapes    arrays: (elements), any number; partial: (tiles) doubles. lr and mu have no unit, the rest that of weights.
// Numerics  float, one rounding per operation as written, without fused multiply-adds: an update is bit-identical on
//           every device. Squares and their sums in double, in an order that depends only on the tiles, so that the
//           norm of finite differences is finite. Rounding to T is to nearest, or stochastic if requested.
// Traffic   bytes per element: 12 (change), 8 (mean), 24 (update in fp32), 26 (in bf16); an update without u 16, 18.
// Source    Douillard et al. 2023, arXiv 2311.08105 (DiLoCo); Nesterov's momentum as in PyTorch.
#pragma once
#include "kernels/adamw.h"
#include "kernels/grad_norm.h"

namespace kernels {

struct OuterChange {
    std::span<float> values;                // elements outside the tiles do not change
    std::span<const float> master, anchor;
    std::span<const NormTile> tiles;        // on the device, within the arrays
    std::span<double> partial;              // partial[t] = the sum of (master - anchor)^2 over tile t
};
struct OuterMean {
    std::span<const float> sums, anchor;
    std::span<const NormTile> tiles;
    std::span<double> partial;              // partial[t] = the sum of y^2 over tile t
    int workers;
};
template <class T>
struct OuterUpdate {
    std::span<T> parameter;                 // the same memory as master where T is float
    std::span<float> master, anchor;
    std::span<float> momentum;              // u; may be empty if mu is 0
    std::span<const float> sums;
    std::span<const double> norm;           // (1): the sum of y^2 over all elements, on the device
    std::span<const StepScalars> scalars;   // (1): adam_step selects the random bits, as for round_parameters
    int workers;
    float learning_rate, mu;                // of the outer step
    Rounding rounding{};                    // of bf16
};

// All enqueue on `stream`. They throw Error if lengths of arrays differ, `partial` is shorter than `tiles`, there is no
// worker, `momentum` is empty and mu is not 0, or `first_element` is not a multiple of 16.
void outer_change(const OuterChange& op, StreamRef stream);
void outer_mean(const OuterMean& op, StreamRef stream);
template <class T>
void outer_update(const OuterUpdate<T>& op, StreamRef stream);

}  // namespace kernels
