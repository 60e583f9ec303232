// sum_ranks.h - the sum of all ranks' contributions, in rank order
//
//   out[i] = (...((x_0[i] + x_1[i]) + x_2[i]) + ...) + x_{R-1}[i]
//   x_rank = own; for r != rank x_r = others[r * stride + ...]
//
// The order is part of the contract: it makes the sum bit-identical on every rank, in every run, and at every ZeRO
// stage.
//
// Shapes    out, own: (elements) T; others: (ranks, stride) T, stride >= elements, row `rank` of it unused.
// Numerics  T = float or bf16: additions in float; one rounding to T at the end.
// Traffic   (ranks + 1) * elements * sizeof(T) bytes.
#pragma once
#include "kernels/device/types.h"

namespace kernels {

template <class T>
struct SumRanks {
    std::span<T> out;         // may be `own`
    std::span<const T> own;
    std::span<const T> others;
    std::int64_t stride;
    int rank, ranks;
};

// Enqueues on `stream`. Throws Error if the sizes do not match, or if an address or the stride is not a multiple of 64
// bytes.
template <class T>
void sum_ranks(const SumRanks<T>& op, StreamRef stream);

}  // namespace kernels
