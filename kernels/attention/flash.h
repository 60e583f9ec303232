// flash.h - attention.h on tensor cores: bf16 in and out, bf16 products with float accumulation, no seq_len x seq_len
// matrix in memory
//
// Shapes and semantics are those of attention.h.
// Numerics  The weights p are rounded to bf16 before they multiply the values (forward) and dout (backward), and ds
//           before it multiplies keys and queries; scores, exponentials, sums and the statistics stay float. All sums
//           have a fixed order, without atomics: results are deterministic, and those of a position do not depend on
//           later positions.
// Work      Forward 4 * batch * heads * seq_len^2 / 2 * head_size flops. Backward 3.5 times that instead of 2.5: the
//           kernel for dq and the one for dk and dv both compute p and dp; sharing them would need atomics or a float
//           copy of dq in memory.
// Memory    No scratch except `delta`.
// Source    Dao 2023, arXiv 2307.08691.
#pragma once
#include <algorithm>
#include <iterator>

#include "kernels/attention/attention.h"

namespace kernels {

inline constexpr int kFlashHeadSizes[] = {64, 80, 96, 128};
constexpr bool flash_takes(int head_size) {
    return std::ranges::find(kFlashHeadSizes, head_size) != std::end(kFlashHeadSizes);
}

// Both enqueue on `stream`; outputs are ready when the stream has passed this point. Both throw Error for another head
// size, under the conditions of attention.h, and in a CPU build.
void flash_attention_forward(const AttentionForward<bf16>& op, StreamRef stream);
void flash_attention_backward(const AttentionBackward<bf16>& op, StreamRef stream);

}  // namespace kernels
