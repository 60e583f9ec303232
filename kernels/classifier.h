// classifier.h - fused softmax and cross-entropy; the gradient overwrites the logits in place
//
//   loss[row] = log(sum over c < vocabulary of exp(logits[row, c])) - logits[row, target]
//   dlogits[row, c] = scale * (softmax(logits[row])[c] - [c == target])
//
// A row whose target is kIgnoreTarget has loss 0; dlogits are exactly 0 there and for c >= vocabulary. In fp8 they are
// written to other memory, as e5m2(kFp8GradientScale * (softmax - [c == target])); rounding: fp8.h.
//
// Shapes    logits: (rows, padded_vocabulary) T; fp8: (rows, padded_vocabulary) e5m2; losses: (rows) float; targets:
//           (rows) int.
// Numerics  in float, relative to the row's maximum. A target outside [0, vocabulary) that is not kIgnoreTarget gives a
//           NaN loss and gradient, never a silent 0; the data loader rejects such ids earlier. On a GPU, logits above
//           2.3e38 in magnitude count as infinite. The loss of equal logits is log(vocabulary), however large they are.
// Traffic   2 * rows * padded_vocabulary * sizeof(T) bytes with a gradient, half of that without. With a gradient each
//           row is read twice, the second time from a GPU's L2 cache: GPT-2's row has 100 KB in bf16, and the rows of
//           all resident blocks, two per multiprocessor, take 27 of the 50 MB of an H100 or H200. That they stay in L2
//           is expected, not measured; in fp32 they take 53 MB, so part of them is evicted.
// Source    standard in language models; row chunks as in Liger-Kernel, arXiv 2410.10989.
#pragma once
#include "kernels/device/types.h"

namespace kernels {

// e5m2 has exponents from 2^-16 on: with this factor, probabilities from 2^-31 on are represented.
inline constexpr float kFp8GradientScale = 0x1p15f;

template <class T>
struct Classifier {
    std::span<T> logits;
    std::span<float> losses;
    std::span<const int> targets;
    int rows, vocabulary, padded_vocabulary;
    float scale;          // weight of one token in the gradient: 1 / positions of the global batch
    bool write_dlogits;   // false: the logits are not modified (validation)
    std::span<e5m2> fp8{};  // bf16 only: not empty: dlogits are written here, and the logits are not modified
};

// Enqueues on `stream`. Throws Error if padded_vocabulary is not a multiple of 16 / sizeof(T), in fp8 of 16, is below
// vocabulary, or a span is too short.
template <class T>
void classifier(const Classifier<T>& op, StreamRef stream);

// total[0] += sum of losses, in double and in a fixed order. Enqueues on `stream`. Throws Error if total is empty.
void accumulate_losses(std::span<double> total, std::span<const float> losses, StreamRef stream);

}  // namespace kernels
