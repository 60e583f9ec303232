// forward_pass.h - the operations of a forward pass and their order in a block, for training and for decoding
//
//   mid = x + attn_proj(attention(qkv(ln_1 x))),  out = mid + mlp_proj(gelu(fc(ln_2 mid)))
//
// A LayerNorm is one operation with the projection and the addition before it: ln_1 x is computed before a block, and
// the block computes the LayerNorm of its output, too: ln_1 of the next block, or ln_f. Shapes in comments: R rows of C
// channels, H hidden channels of the MLP. All functions enqueue on the context's stream.
#pragma once
#include "kernels/layernorm.h"
#include "kernels/matmul/few_rows.h"
#include "llmc/model/activations.h"
#include "llmc/model/context.h"
#include "llmc/model/model_weights.h"

namespace llmc {

// Products of few rows: by the matrix library, or by kernels/matmul/few_rows.h.
enum class FewRows { library, own_kernel };

template <class Element>
class ForwardPass {
public:
    using Tensor = std::span<Element>;
    using Input = std::span<const Element>;

    // Weights and context must outlive it.
    ForwardPass(const ModelWeights& weights, Context& context, FewRows few_rows)
        : weights_(weights), context_(context), few_rows_(few_rows) {}

    // From ln_1 x, in a.ln1, to gelu(fc(ln_2 mid)), the last result that the backward pass reads. `branch` is scratch;
    // attention() computes a.attention from a.qkv.
    template <class Attention>
    void block_to_gelu(const BlockActivations<Element>& a, Input x, Tensor branch, const BlockParameters& p, int rows,
                       const Attention& attention) {
        linear(a.qkv, a.ln1.normed, p.qkv, rows);                               // (R, C) -> (R, 3C)
        attention();                                                            // (R, 3C) -> (R, C)
        linear_add_layernorm(a.residual_mid, a.ln2, x, a.attention, p.attn_proj, branch, p.ln2, rows);
        linear(a.gelu, a.ln2.normed, p.fc, rows, a.pre_gelu);                   // (R, C) -> (R, H)
    }
    // From there to the block's output and its LayerNorm.
    void block_from_gelu(Tensor out, const LayerNormActivations<Element>& out_ln, const BlockActivations<Element>& a,
                         Tensor branch, const BlockParameters& p, const LayerNorm& ln, int rows) {
        linear_add_layernorm(out, out_ln, a.residual_mid, a.gelu, p.mlp_proj, branch, ln, rows);
    }

    // out = in weight^T + bias; if `pre_gelu` is not empty, pre_gelu = in weight^T + bias and out = gelu(pre_gelu)
    void linear(Tensor out, Input in, const Linear& layer, int rows, Tensor pre_gelu = {}) {
        const auto op = linear_op(out, in, layer, rows, pre_gelu);
        if (uses_own_kernel(rows)) kernels::few_rows_forward(op, context_.stream);
        else context_.matmul.forward(op, context_.stream);
    }
    void layernorm(const LayerNormActivations<Element>& out, Input x, const LayerNorm& ln, int rows) {
        kernels::layernorm_forward<Element>({.normed = out.normed, .mean = out.mean, .rstd = out.rstd, .residual = x,
                                             .weight = weight(ln.weight), .bias = weight(ln.bias), .rows = rows,
                                             .channels = channels()}, context_.stream);
    }
    // x = left + in weight^T + bias, out = LayerNorm(x); (R, C) or (R, H) -> (R, C)
    void linear_add_layernorm(Tensor x, const LayerNormActivations<Element>& out, Input left, Input in,
                              const Linear& layer, Tensor branch, const LayerNorm& ln, int rows) {
        const kernels::LinearLayerNormForward<Element> op{
            .linear = linear_op(branch, in, layer, rows),
            .norm = {.residual = x, .normed = out.normed, .mean = out.mean, .rstd = out.rstd, .left = left,
                     .right = branch, .weight = weight(ln.weight), .bias = weight(ln.bias), .rows = rows,
                     .channels = channels()}};
        if (!uses_own_kernel(rows)) return context_.matmul.forward_layernorm(op, context_.stream);
        kernels::few_rows_forward(op.linear, context_.stream);
        kernels::residual_layernorm_forward(op.norm, context_.stream);
    }

    Input weight(int tensor) const { return weights_.template parameter<Element>(tensor); }

private:
    kernels::LinearForward<Element> linear_op(Tensor out, Input in, const Linear& layer, int rows,
                                              Tensor pre_gelu = {}) const {
        return {.out = out, .pre = pre_gelu, .in = in, .weight = weight(layer.weight),
                .bias = layer.has_bias() ? weight(layer.bias) : Input(), .rows = rows,
                .in_channels = layer.in_channels, .out_channels = layer.out_channels};
    }
    bool uses_own_kernel(int rows) const { return few_rows_ == FewRows::own_kernel && rows <= kernels::kFewRows; }
    int channels() const { return weights_.table().config().channels; }

    const ModelWeights& weights_;
    Context& context_;
    FewRows few_rows_;
};

}  // namespace llmc
