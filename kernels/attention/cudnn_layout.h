// cudnn_layout.h - the tensors of attention.h as described to cuDNN: packed queries, keys and values are read and
// written in place
//
//                     dimensions                            strides, in elements
//   q k v, dq dk dv   (batch, heads, seq_len, head_size)    of (batch, seq_len, 3, heads, head_size); k and v start
//                     heads * head_size later each
//   out, dout         the same                              of (batch, seq_len, heads, head_size)
//   stats             (batch, heads, seq_len, 1) float      contiguous: our logsumexp
//
// cuDNN's stats are max + ln(sum of exp(score - max)) of the scaled scores, the natural logarithm (cudnn-frontend,
// docs/operations/Attention.md, set_stats_use_log2). This equals logsumexp, so forward and backward pass may come from
// different implementations.
#pragma once
#include <array>
#include <cstdint>

#include "kernels/attention/attention.h"

namespace kernels {

// The value of an operand identifies its tensor in the graph and in the table of addresses.
enum class CudnnOperand : std::int64_t { q = 1, k, v, out, stats, dout, dq, dk, dv };

struct CudnnLayout {
    std::array<std::int64_t, 4> dimensions, strides;
    std::int64_t first;  // element of the buffer at which the tensor starts
};

constexpr CudnnLayout cudnn_layout(CudnnOperand operand, const AttentionShape& shape) {
    using enum CudnnOperand;
    const std::int64_t batch = shape.batch, length = shape.seq_len, heads = shape.heads, size = shape.head_size,
                       row = heads * size;
    if (operand == stats) return {{batch, heads, length, 1}, {heads * length, length, 1, 1}, 0};
    const bool packed = operand != out && operand != dout;
    const std::int64_t part = !packed                         ? 0
                              : operand == q || operand == dq ? 0
                              : operand == k || operand == dk ? 1
                                                              : 2,
                       step = packed ? 3 * row : row;
    return {{batch, heads, length, size}, {length * step, size, step, 1}, part * row};
}

// The deterministic backward pass adds in a fixed order, the fast one in the order in which its blocks finish.
enum class CudnnPass { forward, backward_deterministic, backward_fast };

}  // namespace kernels
