// onednn_plan.h - one oneDNN matmul primitive for each product of a linear layer; the implementation of each:
// matmul_onednn.cpp
#pragma once
#include <oneapi/dnnl/dnnl.hpp>
#include <oneapi/dnnl/dnnl_debug.h>

#include <compare>
#include <string>
#include <string_view>
#include <unordered_map>

#include "kernels/base/error.h"
#include "kernels/matmul/onednn_operation.h"
#include "kernels/matmul/product.h"

namespace kernels::onednn {

using dnnl::memory;

inline std::string dimensions(int rows, int in_channels, int out_channels) {
    return "rows " + std::to_string(rows) + ", in_channels " + std::to_string(in_channels) + ", out_channels " +
           std::to_string(out_channels);
}

[[noreturn]] inline void fail_in_library(const std::string& call, const std::string& what, dnnl_status_t status) {
    throw Error("oneDNN refused " + call + ": " + what + " (" + dnnl_status2str(status) + ")", Blame::runtime);
}

// The key of a matmul primitive. oneDNN divides the work by the number of threads when it creates the primitive.
struct Shape {
    Product product;
    DType dtype;
    int rows, in_channels, out_channels;
    bool biased, accumulate;
    int threads;
    auto operator<=>(const Shape&) const = default;
    std::string call() const {
        return std::string("matmul ") + name_of(product) + (dtype == DType::bf16 ? " bf16" : " fp32") +
               (accumulate ? " accumulating" : "") + " of " + dimensions(rows, in_channels, out_channels);
    }
};

// A primitive with its arguments bound; a call sets their addresses.
struct Plan {
    dnnl::matmul primitive;
    memory source, weights, bias, result, scratch;
    std::unordered_map<int, memory> arguments;
    std::size_t scratch_bytes;
};

inline Plan plan_of(const Operation::Implementation& implementation, const dnnl::engine& engine,
                    const memory::desc& source, const memory::desc& weights, const memory::desc& result) {
    const memory::desc scratch = implementation.scratchpad_desc();
    Plan plan{.primitive = dnnl::matmul(implementation),
              .source = memory(source, engine, nullptr),
              .weights = memory(weights, engine, nullptr),
              .bias = {},
              .result = memory(result, engine, nullptr),
              .scratch = memory(scratch, engine, nullptr),
              .arguments = {},
              .scratch_bytes = scratch.get_size()};
    plan.arguments = {{DNNL_ARG_SRC, plan.source}, {DNNL_ARG_WEIGHTS, plan.weights}, {DNNL_ARG_DST, plan.result},
                      {DNNL_ARG_SCRATCHPAD, plan.scratch}};
    return plan;
}

inline Plan make_plan(const Shape& shape, const dnnl::engine& engine) {
    using Strides = memory::dims;
    const std::int64_t rows = shape.rows, in = shape.in_channels, out = shape.out_channels;
    const auto type = shape.dtype == DType::bf16 ? memory::data_type::bf16 : memory::data_type::f32;
    const memory::desc in_desc({rows, in}, type, Strides{in, 1}), out_desc({rows, out}, type, Strides{out, 1});
    const memory::desc weight_desc({out, in}, type, Strides{in, 1});
    memory::desc source, weights, result;
    switch (shape.product) {
        case Product::forward:
            source = in_desc;
            weights = memory::desc({in, out}, type, Strides{1, in});
            result = out_desc;
            break;
        case Product::backward_input: source = out_desc; weights = weight_desc; result = in_desc; break;
        case Product::backward_weight:
            source = memory::desc({out, rows}, type, Strides{1, out});
            weights = in_desc;
            result = memory::desc({out, in}, memory::data_type::f32, Strides{in, 1});
            break;
    }
    const memory::desc bias = shape.biased ? memory::desc({1, out}, type, Strides{out, 1}) : memory::desc();

    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    if (shape.accumulate) {
        dnnl::post_ops sum;
        sum.append_sum(1.0f);
        attributes.set_post_ops(sum);
    }
    const Operation operation(source, weights, bias, result);
    Operation::Implementation found = operation.first(engine, attributes);
    if (shape.product == Product::backward_weight) {
        Operation::Implementation other = operation.first(engine, attributes);
        do {
            if (std::string_view(other.impl_info_str()).starts_with("gemm")) {
                found = other;
                break;
            }
        } while (other.next_impl());
    }

    Plan plan = plan_of(found, engine, source, weights, result);
    if (shape.biased) {
        plan.bias = memory(bias, engine, nullptr);
        plan.arguments.emplace(DNNL_ARG_BIAS, plan.bias);
    }
    return plan;
}

// The part of a product's result that is computed: some rows, and of these the first columns.
struct Part {
    int first_row, rows, columns;
    auto operator<=>(const Part&) const = default;
};

// A ScaledProduct in bf16, whose addend is in `out` already. alpha and beta are part of the primitive.
struct ScaledShape {
    int m, n, k, batch;
    Part part;
    bool left_transposed, right_transposed;
    float alpha, beta;
    int threads;
    auto operator<=>(const ScaledShape&) const = default;
};

inline Plan make_plan(const ScaledShape& shape, const dnnl::engine& engine) {
    const std::int64_t m = shape.m, n = shape.n, k = shape.k, batch = shape.batch;
    const std::int64_t rows = shape.part.rows, columns = shape.part.columns;
    // `stride`: between rows, or if transposed between columns
    const auto matrices = [&](std::int64_t height, std::int64_t width, bool transposed, std::int64_t stride,
                              std::int64_t size) {
        const memory::dims strides = transposed ? memory::dims{size, 1, stride} : memory::dims{size, stride, 1};
        return memory::desc({batch, height, width}, memory::data_type::bf16, strides);
    };
    const memory::desc left = matrices(rows, k, shape.left_transposed, shape.left_transposed ? m : k, m * k),
                       right = matrices(k, columns, shape.right_transposed, shape.right_transposed ? k : n, k * n),
                       out = matrices(rows, columns, false, n, m * n);
    dnnl::post_ops scaling;
    if (shape.alpha != 1) append_factor(scaling, shape.alpha);
    if (shape.beta != 0) scaling.append_sum(shape.beta);
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    attributes.set_post_ops(scaling);
    const Operation operation(left, right, memory::desc(), out);
    return plan_of(operation.first(engine, attributes), engine, left, right, out);
}

}  // namespace kernels::onednn
