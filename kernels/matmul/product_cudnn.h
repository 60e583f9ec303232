// product_cudnn.h - a product with GELU by cuDNN, bf16: product_cudnn.cpp, or product_cudnn_absent.cpp, which has no
// plans
//
//   forward:          pre = in weight^T + bias, out = gelu(pre)       backward, input: din = (dout weight) * gelu'(pre)
//
// A graph that also sums the bias gradient would have plans, too, but they add with atomics, in any order.
#pragma once
#include <memory>
#include <vector>

#include "kernels/matmul/algorithm_choice.h"

namespace kernels {

struct CudnnProductOperands {
    const void *left, *weight, *bias;
    void *pre, *out;  // backward: pre is read
};

// Owns the handle, the graphs and their plans. All are created on first use, so construction needs no GPU.
class CudnnProduct {
public:
    CudnnProduct();
    ~CudnnProduct();

    // The plans of cuDNN's heuristics, in their order; none if it does not support the product or cannot run.
    std::vector<AlgorithmBytes> algorithms(const ProductShape& shape);
    // Builds one of them, which takes up to seconds, and returns its number. Throws a run-time Error with cuDNN's
    // status, or if it needs more workspace.
    int build(const ProductShape& shape, const AlgorithmBytes& algorithm, std::size_t workspace_bytes);
    // Enqueues a built plan on `stream`.
    void run(const ProductShape& shape, int plan, const CudnnProductOperands& operands, void* workspace,
             StreamRef stream);

    struct State;

private:
    std::unique_ptr<State> state_;
};

}  // namespace kernels
