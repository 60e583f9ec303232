// symmetric_product.h - a SymmetricProduct by half of its products, on a GPU
//
// Computes the tiles of the lower triangle, and stores each of them twice. bf16 on tensor cores; fp32 in float
// arithmetic. Sums in float in a fixed order, rounded to T once; `out` is exactly symmetric.
// Work      batch * m * (m + 128) * k flops for m that is a multiple of 128; the whole product has 2 * batch * m^2 * k.
#pragma once
#include "kernels/matmul/matmul.h"

namespace kernels {

// Enqueues on `stream`. Throws Error as Matmul::multiply() does.
template <class T> void symmetric_product(const SymmetricProduct<T>& op, StreamRef stream);

}  // namespace kernels
