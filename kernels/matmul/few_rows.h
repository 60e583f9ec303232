// few_rows.h - a linear layer for a handful of rows, as a model that generates text has: a token of each sequence
//
//   out = in weight^T + bias;   with GELU: pre = in weight^T + bias, out = gelu(pre)
//
// Shapes    those of LinearForward in matmul.h.
// Numerics  sums in float, in a fixed order.
// Traffic   out_channels * in_channels * sizeof(T) bytes of weights for every 8 rows; rows and results are small beside
//           them. A library's product copies weights into panels first, which pays where many rows read them.
#pragma once
#include "kernels/matmul/matmul.h"

namespace kernels {

// Up to so many rows few_rows_forward() is faster than Matmul::forward(). On two cores of Zen 5, a layer of 768 -> 3072
// channels: see dev/results/2026-11-23-generate.md. Not measured on a GPU.
inline constexpr int kFewRows = 16;

// Enqueues on `stream`. Throws Error if a span is too short or a channel count is not a multiple of 16 / sizeof(T).
template <class T>
void few_rows_forward(const LinearForward<T>& op, StreamRef stream);

}  // namespace kernels
