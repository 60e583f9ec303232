// outer.h - the outer step of DiLoCo: workers that train alone for some steps move to a common point
//
// In fp32:
//   outer_change: values = master, which the workers add up to `sums`; the squared norm of master - anchor
//   outer_mean:   y = p - anchor, p = sums / workers; the squared norm of y
//   outer_update: u = mu * u + y;  anchor = p + ((lr - 1) * y + (lr * mu) * u)
//                 master = anchor;  parameter = rounded master
//
// The update is torch.optim.SGD(lr, momentum=mu, nesterov=True) on the gradient -y, anchor + lr * (y + mu * u), in a
// form that is exact for lr = 1 and mu = 0: then anchor = p, bit for bit. If the norm of y is not finite, the worker
// returns to the anchor: master = anchor, parameter = rounded master, and anchor and u do not change.
//
// At 1 or 4 bits per element (onebit.h); L: the sum of the learning rates of the round's steps, so that the errors that
// workers and servers carry over are in units of an update and shrink with the learning rate:
//   outer_change: values = (master - anchor) / L, the x of onebit_compress, masked elements 0; the squared norm
//   outer_apply:  y = L * mean, p = anchor + y, and then as outer_update; the squared norm of y; with error feedback
//                 error = z - c, c: what the worker's own messages stand for
// outer_apply moves the anchor, which the caller copies to the weights; if a scale of any worker is not finite, it
// changes nothing.
//
// Shapes    arrays: (elements), any number; partial: (tiles) doubles. lr and mu have no unit, the rest that of weights.
// Numerics  float, one rounding per operation as written, without fused multiply-adds: an update is bit-identical on
//           every device. Squares and their sums in double, in an order that depends only on the tiles, so that the
//           norm of finite differences is finite. Rounding to T is to nearest, or stochastic if requested.
// Traffic   bytes per element: 12 (change), 8 (mean), 24 (update in fp32), 26 (in bf16); an update without u 16, 18.
//           apply: 16 plus 1/8 for every bit, without u 8 less, with error feedback 8 more.
// Source    Douillard et al. 2023, arXiv 2311.08105 (DiLoCo); Nesterov's momentum as in PyTorch.
#pragma once
#include "kernels/adamw.h"
#include "kernels/grad_norm.h"
#include "kernels/onebit.h"

namespace kernels {

struct OuterChange {
    std::span<float> values;                // elements outside the tiles do not change
    std::span<const float> master, anchor;
    std::span<const NormTile> tiles;        // on the device, within the arrays
    std::span<double> partial;              // partial[t] = the sum of (master - anchor)^2 over tile t
    float rate_sum = 0;                     // L; 0: values = master
    std::span<const std::uint32_t> active = {};  // element i at bit i % 32 of word i / 32; only if L is set
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

struct OuterApply {
    OnebitLayout layout;                      // of a bucket; n and chunk multiples of 32
    std::span<const OnebitTile> tiles;
    std::span<const std::uint32_t> replies;   // (ranks, message_words): received
    // The next three are empty without error feedback.
    std::span<const float> compensated;       // (n): z
    std::span<float> error;                   // (n_pad): out, the worker's error
    std::span<const std::uint32_t> messages;  // (ranks, message_words): sent
    std::span<const std::uint32_t> active;    // of the bucket, or empty; y and the error of masked elements are 0
    bool one = false;                         // the value of OnebitScales::one for the workers' scales
    std::span<float> anchor;                  // (n)
    std::span<float> momentum;                // (n): u; may be empty if mu is 0
    std::span<double> partial;                // (tiles): out, the sum of y^2 over a tile, NaN if not `finite`
    std::span<const std::int32_t> finite;     // (1): the verdict of onebit_check_scales
    float rate_sum;                           // L > 0
    float learning_rate, mu;
};

// All enqueue on `stream`. They throw Error if lengths of arrays differ or are shorter than the layout needs, `partial`
// is shorter than `tiles`, there is no worker, L is negative or in outer_apply not positive, `momentum` is empty and mu
// is not 0, or `first_element` is not a multiple of 16.
void outer_change(const OuterChange& op, StreamRef stream);
void outer_mean(const OuterMean& op, StreamRef stream);
template <class T>
void outer_update(const OuterUpdate<T>& op, StreamRef stream);
void outer_apply(const OuterApply& op, StreamRef stream);

}  // namespace kernels
