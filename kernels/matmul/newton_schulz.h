// newton_schulz.h - orthogonalizes matrices by products alone: of U S V^T the result is U S' V^T with singular values
// near 1
//
//   S = X X^T;  P = q S + r S S;  X = p X + P X      for each step (p, q, r), if a matrix has no more rows than columns
//   S = X^T X;  P = q S + r S S;  X = p X + X P      otherwise
//
// Shapes    matrices, other: (count, rows, columns) T; gram, polynomial: (count, a, a) T, a = min(rows, columns).
// Numerics  products accumulate in float; S, P and X are rounded to T once each. A zero matrix stays zero.
// Work      steps * count * (4 a^2 b + 2 a^3) flops, b = max(rows, columns); 3 a^2 b + a^3 where
//           S and P are computed by halves (matmul.h).
// Source    Jordan et al. 2024, kellerjordan.github.io/posts/muon; coefficients: there, and Amsel et al. 2025, arXiv
//           2505.16932 (Polar Express).
#pragma once
#include <array>

#include "kernels/matmul/matmul.h"

namespace kernels {

struct NewtonSchulzStep {
    float p, q, r;
};
// These take singular values from (0, 1] to between about 0.68 and 1.15.
inline constexpr std::array<NewtonSchulzStep, 5> kMuonSteps = [] {
    std::array<NewtonSchulzStep, 5> steps;
    steps.fill({3.4445f, -4.7750f, 2.0315f});
    return steps;
}();

template <class T>
struct NewtonSchulz {
    std::span<T> matrices;  // in: of Frobenius norm 1, or 0
    std::span<T> other, gram, polynomial;
    int count, rows, columns;  // rows and columns: multiples of 16 / sizeof(T)
    std::span<const NewtonSchulzStep> steps;
};
// Returns the array that has the result: `matrices`, or after an odd number of steps `other`. Enqueues on `stream`.
template <class T>
std::span<T> newton_schulz(Matmul& matmul, const NewtonSchulz<T>& op, StreamRef stream) {
    const bool wide = op.rows <= op.columns;
    const int a = wide ? op.rows : op.columns, b = wide ? op.columns : op.rows;
    std::span<T> x = op.matrices, next = op.other;
    for (const NewtonSchulzStep& step : op.steps) {
        matmul.multiply<T>({.out = op.gram, .x = x, .m = a, .k = b, .batch = op.count, .transposed = !wide}, stream);
        matmul.multiply<T>({.out = op.polynomial, .x = op.gram, .addend = op.gram, .m = a, .k = a, .batch = op.count,
                            .alpha = step.r, .beta = step.q}, stream);
        const std::span<const T> left = wide ? op.polynomial : x, right = wide ? x : op.polynomial;
        matmul.multiply<T>({.out = next, .left = left, .right = right, .addend = x, .m = op.rows, .n = op.columns,
                            .k = a, .batch = op.count, .beta = step.p}, stream);
        std::swap(x, next);
    }
    return x;
}

}  // namespace kernels
