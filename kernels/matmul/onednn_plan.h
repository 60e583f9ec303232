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

[[noreturn]] inline void fail_in_library(const std::string& call, const std::string& what, dnnl_status_t status) {
    throw Error("oneDNN refused " + call + ": " + what + " (" + dnnl_status2str(status) + ")", Blame::runtime);
}

// result (m, n) = left (m, k) right (k, n), row-major; a transposed factor is stored as (k, m) or (n, k).
struct Gemm {
    std::int64_t m, n, k;
    bool left_transposed, right_transposed;
    std::int64_t left_stride() const { return left_transposed ? m : k; }
    std::int64_t right_stride() const { return right_transposed ? k : n; }
};

// The key of a matmul primitive. oneDNN divides the work by the number of threads when it creates the primitive.
struct Shape {
    Product product;
    DType dtype;
    int rows, in_channels, out_channels;
    bool biased, accumulate;
    int threads;
    auto operator<=>(const Shape&) const = default;
    Gemm gemm() const {
        return product == Product::forward          ? Gemm{rows, out_channels, in_channels, false, true}
               : product == Product::backward_input ? Gemm{rows, in_channels, out_channels, false, false}
                                                    : Gemm{out_channels, in_channels, rows, true, false};
    }
    std::string call() const {
        return std::string("matmul ") + name_of(product) + (dtype == DType::bf16 ? " bf16" : " fp32") +
               (accumulate ? " accumulating" : "") + " of rows " + std::to_string(rows) + ", in_channels " +
               std::to_string(in_channels) + ", out_channels " + std::to_string(out_channels);
    }
};

// A primitive with its arguments bound; a call sets their addresses.
struct Plan {
    dnnl::matmul primitive;
    memory source, weights, bias, result, scratch;
    std::unordered_map<int, memory> arguments;
    std::size_t scratch_bytes;
    bool has_kernel;  // false: oneDNN would compute it with plain loops
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
              .scratch_bytes = scratch.get_size(),
              .has_kernel = !std::string_view(implementation.impl_info_str()).starts_with("ref")};
    plan.arguments = {{DNNL_ARG_SRC, plan.source}, {DNNL_ARG_WEIGHTS, plan.weights}, {DNNL_ARG_DST, plan.result},
                      {DNNL_ARG_SCRATCHPAD, plan.scratch}};
    return plan;
}

inline Plan make_plan(const Shape& shape, const dnnl::engine& engine) {
    const Gemm gemm = shape.gemm();
    const auto type = shape.dtype == DType::bf16 ? memory::data_type::bf16 : memory::data_type::f32;
    const auto matrix = [](std::int64_t rows, std::int64_t columns, bool transposed, memory::data_type type) {
        return memory::desc({rows, columns}, type, transposed ? memory::dims{1, rows} : memory::dims{columns, 1});
    };
    const memory::desc source = matrix(gemm.m, gemm.k, gemm.left_transposed, type),
                       weights = matrix(gemm.k, gemm.n, gemm.right_transposed, type),
                       result = matrix(gemm.m, gemm.n, false, shape.product == Product::backward_weight
                                                                  ? memory::data_type::f32 : type),
                       bias = shape.biased ? matrix(1, gemm.n, false, type) : memory::desc();

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
    const Gemm whole{shape.m, shape.n, shape.k, shape.left_transposed, shape.right_transposed};
    const std::int64_t m = whole.m, n = whole.n, k = whole.k, rows = shape.part.rows, columns = shape.part.columns;
    // `stride`: between rows, or if transposed between columns
    const auto matrices = [&](std::int64_t height, std::int64_t width, bool transposed, std::int64_t stride,
                              std::int64_t size) {
        const memory::dims strides = transposed ? memory::dims{size, 1, stride} : memory::dims{size, stride, 1};
        return memory::desc({shape.batch, height, width}, memory::data_type::bf16, strides);
    };
    const memory::desc left = matrices(rows, k, whole.left_transposed, whole.left_stride(), m * k),
                       right = matrices(k, columns, whole.right_transposed, whole.right_stride(), k * n),
                       out = matrices(rows, columns, false, n, m * n);
    // The addend first: otherwise oneDNN 2 computes a part of a product with loops, a thousand times slower.
    dnnl::post_ops scaling;
    if (shape.beta != 0) scaling.append_sum(shape.beta / shape.alpha);
    if (shape.alpha != 1) append_factor(scaling, shape.alpha);
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    attributes.set_post_ops(scaling);
    const Operation operation(left, right, memory::desc(), out);
    return plan_of(operation.first(engine, attributes), engine, left, right, out);
}

}  // namespace kernels::onednn
