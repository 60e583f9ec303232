// fp8_head.h - the head in 8-bit floats: logits, losses and gradients of some rows of a bf16 model
//
//   x8 = e4m3(s_x x),  w8 = e4m3(s_w W)                    x: LayerNorm's output, W: the token embedding
//   logits = bf16(x8 w8^T / (s_x s_w)), or bf16(x W^T)     Fp8::head, Fp8::head_backward
//   g8 = e5m2(2^15 (softmax(logits) - one-hot))            0 without a target
//   dx = bf16(g8 w8 token_weight / (2^15 s_w)),  dW (+)= g8^T x8 token_weight / (2^15 s_x)
//
// The scales follow from the weights alone (kernels/fp8.h), so a token's gradient does not depend on the rows, the
// micro-batches or the ranks that it is computed with. Validation, samples and decoding use bf16.
#pragma once
#include <span>

#include "kernels/device/device.h"
#include "kernels/matmul/matmul.h"
#include "llmc/base/names.h"
#include "llmc/weights/model_config.h"

namespace llmc {

enum class Fp8 { off, head_backward, head };
inline constexpr Named<Fp8> kFp8s[] = {{"off", Fp8::off}, {"head-backward", Fp8::head_backward}, {"head", Fp8::head}};

// Its memory. V: the padded vocabulary, C channels, r rows of a chunk, r' = fp8_padded_rows(r).
struct Fp8Head {
    std::span<float> scales, scratch;
    std::span<kernels::e4m3> weight, weight_transposed;    // (V, C), (C, V)
    std::span<kernels::e4m3> x, x_transposed;              // (r, C), (C, r')
    std::span<kernels::e5m2> dlogits, dlogits_transposed;  // (r, V), (V, r'), which overwrites the logits
};

// One chunk.
struct Fp8HeadRows {
    std::span<float> losses, dweight;
    std::span<kernels::bf16> logits, dx;  // head_backward: x W^T before the call
    std::span<const kernels::bf16> x;
    std::span<const int> targets;
    int rows;
    float token_weight;
    bool accumulate;  // dweight is added to
};

// Throws Error for --fp8 if the GPU or the model cannot.
void require_fp8(Fp8 fp8, const ModelConfig& config, const device::Info& device);

// Both enqueue on `stream`. After each update of gamma and beta of the LayerNorm, and of the weight (V, C):
void round_weights(const Fp8Head& head, std::span<const kernels::bf16> gamma, std::span<const kernels::bf16> beta,
                   std::span<const kernels::bf16> weight, kernels::StreamRef stream);
// Uses the weights as they were rounded last.
void head_in_fp8(Fp8 fp8, const Fp8Head& head, const Fp8HeadRows& op, const ModelConfig& config,
                 kernels::Matmul& matmul, kernels::StreamRef stream);

}  // namespace llmc
