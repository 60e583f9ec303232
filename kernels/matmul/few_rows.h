// few_rows.h - a linear layer for a few rows, as a model that generates text has: a token of each sequence
//
//   out = in weight^T + bias;   with GELU: pre = in weight^T + bias, out = gelu(pre)
//
// Shapes    those of LinearForward in matmul.h.
// Numerics  sums in float, in a fixed order; bf16 is widened on its way.
// Traffic   out_channels * in_channels * sizeof(T) bytes of weights, read once; rows and results are small beside them.
//           A library's product copies weights into panels first, which pays where many rows read them.
#pragma once
#include "kernels/matmul/matmul.h"

namespace kernels {

// Up to so many rows it is faster than oneDNN on a Zen 5: layers of GPT-2 124M on one core, fp32, one row 1.9 to 3.0
// times as fast, four 0.7 to 2.5 times; bf16 1.5 to 2.1 and 0.9 to 1.1 times (dev/results/2026-11-23-generate.md). On a
// GPU not measured.
inline constexpr int kFewRows = 4;

// Enqueues on `stream`. Throws Error for more rows than kFewRows, a span that is too short, or a channel count that is
// no multiple of 16 / sizeof(T).
template <class T>
void few_rows_forward(const LinearForward<T>& op, StreamRef stream);

}  // namespace kernels
