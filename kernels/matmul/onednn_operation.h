// onednn_operation.h - a matmul operation of oneDNN, whose implementations can be listed, and a factor of its result:
// what differs between versions 2 and 3 and concerns this project
#pragma once
#include <oneapi/dnnl/dnnl.hpp>

namespace kernels::onednn {

// result = source weights (+ bias). An empty bias means no bias. It must outlive iterators over its implementations
// (primitive_desc::next_impl()): in version 2 they hold its address.
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
    // oneDNN's first implementation.
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

// Multiplies the result so far by `factor`.
inline void append_factor(dnnl::post_ops& operations, float factor) {
#if DNNL_VERSION_MAJOR >= 3
    operations.append_eltwise(dnnl::algorithm::eltwise_linear, factor, 0.0f);
#else
    operations.append_eltwise(1.0f, dnnl::algorithm::eltwise_linear, factor, 0.0f);
#endif
}

}  // namespace kernels::onednn
