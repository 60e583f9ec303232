// onednn_operation.h - a matmul operation of oneDNN, whose implementations can be listed: the one difference between
// versions 2 and 3 that this project meets
#pragma once
#include <oneapi/dnnl/dnnl.hpp>

namespace kernels::onednn {

// result = source weights (+ bias). An empty bias is none. Keep it while an iterator over its implementations
// (primitive_desc::next_impl()) is used: that of version 2 holds its address.
class Operation {
public:
    using Implementation = dnnl::matmul::primitive_desc;

#if DNNL_VERSION_MAJOR >= 3
    Operation(const dnnl::memory::desc& source, const dnnl::memory::desc& weights, const dnnl::memory::desc& bias,
              const dnnl::memory::desc& result)
        : source_(source),
          weights_(weights),
          bias_(bias),
          result_(result) {}
    // The one that oneDNN offers first.
    Implementation first(const dnnl::engine& engine, const dnnl::primitive_attr& attributes) const {
        return {engine, source_, weights_, bias_, result_, attributes};
    }

private:
    dnnl::memory::desc source_, weights_, bias_, result_;
#else
    Operation(const dnnl::memory::desc& source, const dnnl::memory::desc& weights, const dnnl::memory::desc& bias,
              const dnnl::memory::desc& result)
        : desc_(source, weights, bias, result) {}
    Implementation first(const dnnl::engine& engine, const dnnl::primitive_attr& attributes) const {
        return {desc_, attributes, engine};
    }

private:
    dnnl::matmul::desc desc_;
#endif
};

}  // namespace kernels::onednn
