// cudnn_graph.h - attention for cuDNN: a graph of its frontend for each pass
//
// Forward (scaled, causal, with statistics), deterministic backward and nondeterministic backward. On Hopper the
// deterministic one stores a seq_len x seq_len matrix of bf16 per head in its workspace (2 GiB at batch 64, 16 heads,
// 1024 tokens). For attention_cudnn.cpp, and for the test that calls cuDNN without a GPU.
#pragma once
#include <cudnn_frontend.h>

#include <cmath>
#include <memory>

#include "kernels/attention/cudnn_layout.h"

namespace kernels::cudnn_graph {

namespace fe = cudnn_frontend;

// Sets layout and unique id of an operand.
inline fe::graph::Tensor_attributes& set_operand(fe::graph::Tensor_attributes& attributes, CudnnOperand operand,
                                                 const AttentionShape& shape) {
    const CudnnLayout layout = cudnn_layout(operand, shape);
    if (operand == CudnnOperand::stats) attributes.set_data_type(fe::DataType_t::FLOAT);
    return attributes.set_uid(std::int64_t(operand))
        .set_dim({layout.dimensions.begin(), layout.dimensions.end()})
        .set_stride({layout.strides.begin(), layout.strides.end()});
}
inline std::shared_ptr<fe::graph::Tensor_attributes> tensor(fe::graph::Graph& graph, CudnnOperand operand,
                                                            const AttentionShape& shape) {
    fe::graph::Tensor_attributes attributes;
    return graph.tensor(set_operand(attributes, operand, shape));
}
inline void output(const std::shared_ptr<fe::graph::Tensor_attributes>& result, CudnnOperand operand,
                   const AttentionShape& shape) {
    set_operand(*result, operand, shape).set_output(true);
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

inline void describe(fe::graph::Graph& graph, CudnnPass pass, const AttentionShape& shape) {
    using enum fe::DataType_t;
    graph.set_io_data_type(BFLOAT16).set_intermediate_data_type(FLOAT).set_compute_data_type(FLOAT);
    if (pass == CudnnPass::forward) describe_forward(graph, shape);
    else describe_backward(graph, shape, pass == CudnnPass::backward_deterministic);
}

// Lists the plans of cuDNN's heuristics, in their order, for a built operation graph; an error if it supports none.
// Leaves out those that cuDNN notes as nondeterministic. It does not note it for any plan of the fast graph (9.19, 9.28
// for an H200), so attention.cpp also compares repeated runs of the deterministic one.
inline fe::error_t list_plans(fe::graph::Graph& graph, CudnnPass pass) {
    const fe::error_t status = graph.create_execution_plans({fe::HeurMode_t::A});
    if (status.is_bad()) return status;
    if (pass != CudnnPass::backward_fast) graph.deselect_numeric_notes({fe::NumericalNote_t::NONDETERMINISTIC});
    return graph.check_support();
}

// Builds a plan of the list, which takes up to a second. `bytes`: of its workspace.
inline fe::error_t build_plan(fe::graph::Graph& graph, int plan, std::int64_t& bytes) {
    const fe::error_t status = graph.build_plan_at_index(plan);
    return status.is_bad() ? status : graph.get_workspace_size_plan_at_index(plan, bytes);
}

}  // namespace kernels::cudnn_graph
