// cudnn_graph.h - attention as cuDNN is told of it: a graph of its frontend for each pass
//
// Forward (scaled, causal, statistics kept), backward by the algorithm that adds in a fixed order, and by the one that
// does not. The first of these keeps a seq_len x seq_len matrix of bf16 per head in its workspace on Hopper (2 GiB at
// batch 64, 16 heads, 1024 tokens). For attention_cudnn.cpp, and for the test that asks cuDNN itself without a GPU.
#pragma once
#include <cudnn_frontend.h>

#include <cmath>
#include <memory>

#include "kernels/attention/cudnn_layout.h"

namespace kernels::cudnn_graph {

namespace fe = cudnn_frontend;

inline std::shared_ptr<fe::graph::Tensor_attributes> tensor(fe::graph::Graph& graph, CudnnOperand operand,
                                                            const AttentionShape& shape) {
    const CudnnLayout layout = cudnn_layout(operand, shape);
    auto attributes = fe::graph::Tensor_attributes()
                          .set_uid(std::int64_t(operand))
                          .set_dim({layout.dimensions.begin(), layout.dimensions.end()})
                          .set_stride({layout.strides.begin(), layout.strides.end()});
    if (operand == CudnnOperand::stats) attributes.set_data_type(fe::DataType_t::FLOAT);
    return graph.tensor(attributes);
}

// What the graph computes takes the layout and the identity of an operand.
inline void output(const std::shared_ptr<fe::graph::Tensor_attributes>& result, CudnnOperand operand,
                   const AttentionShape& shape) {
    const CudnnLayout layout = cudnn_layout(operand, shape);
    result->set_output(true)
        .set_uid(std::int64_t(operand))
        .set_dim({layout.dimensions.begin(), layout.dimensions.end()})
        .set_stride({layout.strides.begin(), layout.strides.end()});
    if (operand == CudnnOperand::stats) result->set_data_type(fe::DataType_t::FLOAT);
}

inline void describe_forward(fe::graph::Graph& graph, const AttentionShape& shape) {
    using enum CudnnOperand;
    const auto attributes = fe::graph::SDPA_attributes()
                                .set_generate_stats(true)
                                .set_attn_scale(1.0f / std::sqrt(float(shape.head_size)))
                                .set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT)
                                .set_diagonal_band_right_bound(0);
    const auto [result, statistics] = graph.sdpa(tensor(graph, q, shape), tensor(graph, k, shape),
                                                 tensor(graph, v, shape), attributes);
    output(result, out, shape);
    output(statistics, stats, shape);
}

inline void describe_backward(fe::graph::Graph& graph, const AttentionShape& shape, bool deterministic) {
    using enum CudnnOperand;
    const auto attributes = fe::graph::SDPA_backward_attributes()
                                .set_attn_scale(1.0f / std::sqrt(float(shape.head_size)))
                                .set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT)
                                .set_diagonal_band_right_bound(0)
                                .set_deterministic_algorithm(deterministic);
    const auto [dquery, dkey, dvalue] = graph.sdpa_backward(
        tensor(graph, q, shape), tensor(graph, k, shape), tensor(graph, v, shape), tensor(graph, out, shape),
        tensor(graph, dout, shape), tensor(graph, stats, shape), attributes);
    output(dquery, dq, shape);
    output(dkey, dk, shape);
    output(dvalue, dv, shape);
}

inline void describe(fe::graph::Graph& graph, const CudnnPlanKey& key) {
    using enum fe::DataType_t;
    graph.set_io_data_type(BFLOAT16).set_intermediate_data_type(FLOAT).set_compute_data_type(FLOAT);
    if (key.pass == CudnnPass::forward) describe_forward(graph, key.shape);
    else describe_backward(graph, key.shape, key.pass == CudnnPass::backward_deterministic);
}

}  // namespace kernels::cudnn_graph
