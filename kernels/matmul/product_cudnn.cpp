// product_cudnn.cpp - product_cudnn.h: one graph of cuDNN's frontend per shape, with the plans of cuDNN's heuristics
//
// cuDNN compiles a kernel for each plan: on an H200 with wgmma and TMA (engine 4), or as on an A100 with mma.sync
// (engines 1 and 7). None of them has a workspace or adds to memory (their SASS; 9.19, 124M's shapes).
#include "kernels/matmul/product_cudnn.h"

#include <algorithm>
#include <map>
#include <unordered_map>

#include "kernels/device/checked_cudnn.h"

namespace kernels {
namespace {

namespace fe = cudnn_frontend;

using Tensor = std::shared_ptr<fe::graph::Tensor_attributes>;
enum Operand : std::int64_t { left = 1, weight, bias, pre, out };  // ids in graph and table of addresses

// (1, rows, columns)
Tensor matrix(fe::graph::Graph& graph, Operand operand, std::int64_t rows, std::int64_t columns,
              bool transposed = false) {
    return graph.tensor(fe::graph::Tensor_attributes()
                            .set_uid(operand)
                            .set_dim({1, rows, columns})
                            .set_stride({rows * columns, transposed ? 1 : columns, transposed ? rows : 1}));
}

void describe(fe::graph::Graph& graph, const ProductShape& shape) {
    using enum fe::PointwiseMode_t;
    const auto pointwise = [](fe::PointwiseMode_t mode) { return fe::graph::Pointwise_attributes().set_mode(mode); };
    const bool forward = shape.product == Product::forward;
    const std::int64_t rows = shape.rows, inner = forward ? shape.in_channels : shape.out_channels,
                       columns = forward ? shape.out_channels : shape.in_channels;
    graph.set_io_data_type(fe::DataType_t::BFLOAT16)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    Tensor result = graph.matmul(matrix(graph, left, rows, inner), matrix(graph, weight, inner, columns, forward),
                                 fe::graph::Matmul_attributes());
    if (forward) {
        if (shape.biased) result = graph.pointwise(result, matrix(graph, bias, 1, columns), pointwise(ADD));
        result->set_output(true).set_uid(pre);
        result = graph.pointwise(result, pointwise(GELU_APPROX_TANH_FWD));
    } else {
        result = graph.pointwise(result, matrix(graph, pre, rows, columns), pointwise(GELU_APPROX_TANH_BWD));
    }
    result->set_output(true).set_uid(out);
}

}  // namespace

struct CudnnProduct::State {
    struct Listed {
        fe::graph::Graph graph;
        std::vector<AlgorithmBytes> algorithms;  // empty: refused
    };
    device::CudnnHandle handle;
    std::map<ProductShape, Listed> products;

    void list(Listed& product, const ProductShape& shape) {
        fe::graph::Graph& graph = product.graph;
        describe(graph, shape);
        CHECKED(graph.validate());
        CHECKED(graph.build_operation_graph(handle.get()));
        CHECKED(graph.create_execution_plans({fe::HeurMode_t::A}));
        graph.deselect_numeric_notes({fe::NumericalNote_t::NONDETERMINISTIC});
        CHECKED(graph.check_support());
        for (std::int64_t plan = 0; plan < graph.get_execution_plan_count(); ++plan) {
            std::string name;  // engine and configuration, such as "eng4_k24=45"
            CHECKED(graph.get_plan_name_at_index(plan, name));
            name = std::to_string(cudnnGetVersion()) + ' ' + name;
            product.algorithms.emplace_back(name.begin(), name.end());
        }
    }
    Listed& product_of(const ProductShape& shape) {
        const auto [entry, is_new] = products.try_emplace(shape);
        try {
            if (is_new) list(entry->second, shape);
        } catch (const std::exception&) {  // this code's, or one that the frontend does not catch
            entry->second.algorithms.clear();
        }
        return entry->second;
    }
};

CudnnProduct::CudnnProduct() : state_(new State) {}
CudnnProduct::~CudnnProduct() = default;

std::vector<AlgorithmBytes> CudnnProduct::algorithms(const ProductShape& shape) {
    return state_->product_of(shape).algorithms;
}

int CudnnProduct::build(const ProductShape& shape, const AlgorithmBytes& algorithm, std::size_t workspace_bytes) {
    auto& [graph, algorithms] = state_->product_of(shape);
    const std::int64_t plan = std::ranges::find(algorithms, algorithm) - algorithms.begin();
    std::int64_t bytes = 0;
    CHECKED(graph.build_plan_at_index(plan));
    CHECKED(graph.get_workspace_size_plan_at_index(plan, bytes));
    if (std::size_t(bytes) > workspace_bytes)
        fail("the workspace of a plan of cuDNN for " + shape.call(), bytes,
             "at most " + std::to_string(workspace_bytes) + " bytes", "", Blame::runtime);
    return int(plan);
}

void CudnnProduct::run(const ProductShape& shape, int plan, const CudnnProductOperands& operands, void* workspace,
                       StreamRef stream) {
    std::unordered_map<std::int64_t, void*> addresses{{left, const_cast<void*>(operands.left)},
                                                      {weight, const_cast<void*>(operands.weight)},
                                                      {pre, operands.pre},
                                                      {out, operands.out}};
    if (shape.product == Product::forward && shape.biased) addresses[bias] = const_cast<void*>(operands.bias);
    CHECKED(cudnnSetStream(state_->handle.get(), stream));
    CHECKED(state_->products.at(shape).graph.execute_plan_at_index(state_->handle.get(), addresses, workspace, plan));
}

}  // namespace kernels
