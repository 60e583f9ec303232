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

// A plan that is ready to run: its index in cuDNN's list.
struct BuiltPlan {
    std::int64_t index = 0;
    std::size_t workspace_bytes = 0;
};

// Builds the first plan of cuDNN's heuristics that can be built, for a built operation graph. If there is none, an
// error with the first reason. A plan takes up to half a second to build.
inline fe::error_t build_first_plan(fe::graph::Graph& graph, BuiltPlan& built) {
    fe::error_t status = graph.create_execution_plans({fe::HeurMode_t::A});
    if (status.is_good()) status = graph.check_support();
    if (status.is_bad()) return status;
    fe::error_t first_fault{fe::error_code_t::GRAPH_EXECUTION_PLAN_CREATION_FAILED, "cuDNN offers no plan"};
    for (std::int64_t i = 0; i < graph.get_execution_plan_count(); ++i) {
        std::int64_t bytes = 0;
        status = graph.build_plan_at_index(i);
        if (status.is_good()) status = graph.get_workspace_size_plan_at_index(i, bytes);
        built = {i, std::size_t(bytes)};
        if (status.is_good()) return status;
        if (i == 0) first_fault = status;
    }
    return first_fault;
}

}  // namespace kernels::cudnn_graph
