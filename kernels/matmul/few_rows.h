// few_rows.h - a linear layer for few rows, for text generation: one token of each sequence
//
//   out = in weight^T + bias;   with GELU: pre = in weight^T + bias, out = gelu(pre)
//
// Shapes    those of LinearForward in matmul.h.
// Numerics  sums in float, in a fixed order; bf16 is widened when it is loaded.
// Traffic   out_channels * in_channels * sizeof(T) bytes of weights, read once; rows and results are much smaller.
//           A library's product first copies weights into panels, which pays if many rows read them.
#pragma once
#include "kernels/matmul/matmul.h"

namespace kernels {

// Up to this number of rows it is faster than oneDNN on a Zen 5: layers of GPT-2 124M on one core, fp32, one row 1.9 to
// 3.0 times as fast, four 0.7 to 2.5 times; bf16 1.5 to 2.1 and 0.9 to 1.1 times (dev/results/2026-11-23-generate.md).
// Not measured on a GPU.
inline constexpr int kFewRows = 4;

// Enqueues on `stream`. Throws Error for more rows than kFewRows, a span that is too short, or a channel count that is
// not a multiple of 16 / sizeof(T).
template <class T>
void few_rows_forward(const LinearForward<T>& op, StreamRef stream);

}  // namespace kernels
