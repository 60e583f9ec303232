// cublaslt_plan.h - the cuBLASLt descriptors of a product, and the algorithms that it offers; the table of m, n, k and
// operands: matmul_cublaslt.cpp
#pragma once
#include <algorithm>
#include <cstring>
#include <span>
#include <tuple>
#include <vector>

#include "kernels/matmul/cublaslt_handles.h"
#include "kernels/matmul/product.h"

namespace kernels::cublaslt {

// The allowed reduction schemes of split-k: partial sums in float, which are added in a fixed order. COMPUTE_TYPE keeps
// them in float for any type of the result, OUTPUT_TYPE only if the result is float. INPLACE adds them to the result:
// cublasLt.h documents that they are added one after the other, but not in which order.
inline std::uint32_t reductions_of(const ProductShape& shape) {
    const bool into_float = shape.dtype == DType::fp32 || shape.product == Product::backward_weight;
    return into_float ? CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE | CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE
                      : CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
}

using Algorithm = cublasLtMatmulAlgo_t;

// Addresses of one call. A forward product reads `bias`, DGELU_BGRAD writes it.
struct Operands {
    const void *a, *b;
    void* d;
    const void* bias = nullptr;
    const void* auxiliary = nullptr;
    const void* addend = nullptr;  // of the form that adds the residual
    const void *a_factor = nullptr, *b_factor = nullptr;  // fp8: in device memory
    float factor = 1;

    std::uintptr_t alignment() const {
        std::uintptr_t bits = kTensorAlignment;
        for (const void* address : {a, b, static_cast<const void*>(d), bias, auxiliary, addend})
            bits |= reinterpret_cast<std::uintptr_t>(address);
        return bits & (~bits + 1);
    }
};

struct Plan {
    Description description;
    Layout a, b, d;
    Algorithm algorithm{};
    ProductForm form;
    bool by_library = true;
    int cudnn_plan = 0;  // of the form cudnn-gelu, without the rest
};

inline cublasLtEpilogue_t epilogue_of(const ProductShape& shape, const ProductForm& form) {
    switch (shape.product) {
        case Product::forward:
            if (form.gelu) return shape.biased ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
            return shape.biased ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
        case Product::backward_input:
            if (form.bias_gradient) return CUBLASLT_EPILOGUE_DGELU_BGRAD;
            return form.gelu ? CUBLASLT_EPILOGUE_DGELU : CUBLASLT_EPILOGUE_DEFAULT;
        case Product::backward_weight: break;
    }
    return CUBLASLT_EPILOGUE_DEFAULT;
}

// Sets only pointers that the epilogue uses: the library refuses others.
inline void set_addresses(const Plan& plan, const ProductShape& shape, const Operands& operands) {
    if (shape.product == Product::forward ? shape.biased : plan.form.bias_gradient)
        set(plan.description, CUBLASLT_MATMUL_DESC_BIAS_POINTER, operands.bias);
    if (plan.form.gelu) set(plan.description, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, operands.auxiliary);
    if (!shape.fp8) return;
    set(plan.description, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, operands.a_factor);
    set(plan.description, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, operands.b_factor);
}

// Both factors K-major, the only layout for 8-bit floats on Hopper: A is `right`, B is `left`.
inline Plan describe_fp8(const ProductShape& shape, const Operands& operands) {
    Plan plan;
    const bool forward = shape.product == Product::forward, of_weight = shape.product == Product::backward_weight;
    const std::int64_t n = forward ? shape.out_channels : shape.in_channels,
                       m = of_weight ? shape.out_channels : shape.rows,
                       k = forward ? shape.in_channels : of_weight ? shape.rows : shape.out_channels;
    plan.description = make_description(CUBLAS_COMPUTE_32F);
    plan.a = make_layout(CUDA_R_8F_E4M3, k, n);
    plan.b = make_layout(forward ? CUDA_R_8F_E4M3 : CUDA_R_8F_E5M2, k, m);
    plan.d = make_layout(of_weight ? CUDA_R_32F : CUDA_R_16BF, n, m);
    set(plan.description, CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
    // Partial sums in fewer bits than a float's, in tensor cores: faster. Their error is below that of bf16 logits.
    set(plan.description, CUBLASLT_MATMUL_DESC_FAST_ACCUM, std::int8_t(forward));
    set_addresses(plan, shape, operands);
    return plan;
}

inline Plan describe(const ProductShape& shape, const Operands& operands, const ProductForm& form) {
    if (shape.fp8) return describe_fp8(shape, operands);
    Plan plan;
    const cudaDataType_t type = shape.dtype == DType::bf16 ? CUDA_R_16BF : CUDA_R_32F;
    const std::int64_t rows = shape.rows, in = shape.in_channels, out = shape.out_channels;
    plan.description = make_description(shape.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F);
    plan.a = shape.product == Product::backward_weight ? make_layout(type, in, rows) : make_layout(type, in, out);
    plan.b = shape.product == Product::forward ? make_layout(type, in, rows) : make_layout(type, out, rows);
    plan.d = shape.product == Product::forward         ? make_layout(type, out, rows)
             : shape.product == Product::backward_input ? make_layout(type, in, rows)
                                                        : make_layout(CUDA_R_32F, in, out);
    if (shape.product == Product::forward) set(plan.description, CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
    if (shape.product == Product::backward_weight) set(plan.description, CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_T);
    plan.form = form;
    set(plan.description, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue_of(shape, form));
    if (form.gelu)
        set(plan.description, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, shape.product == Product::forward ? out : in);
    set_addresses(plan, shape, operands);
    return plan;
}

// The library's algorithms for this plan, in its order; empty if it has none. `alignment`: of all matrices, in bytes.
inline std::vector<Algorithm> search(const Library& library, std::size_t workspace_bytes, const Plan& plan,
                                     std::uint32_t reductions, std::uintptr_t alignment, int most) {
    const Preference preference = make_preference();
    set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace_bytes);
    set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reductions);
    for (const auto attribute :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
        set(preference, attribute, std::uint32_t(alignment));
    std::vector<cublasLtMatmulHeuristicResult_t> results(static_cast<std::size_t>(most));
    int found = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
        library.get(), plan.description.get(), plan.a.get(), plan.b.get(), plan.d.get(), plan.d.get(),
        preference.get(), most, results.data(), &found);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED) return {};
    // some versions return these if they lack an epilogue
    if (status == CUBLAS_STATUS_INVALID_VALUE && plan.form != ProductForm()) return {};
    throw_fault(fault_of(status), "cublasLtMatmulAlgoGetHeuristic()", __FILE__, __LINE__);
    std::vector<Algorithm> usable;
    for (const auto& result : std::span(results).first(std::size_t(found)))
        if (result.state == CUBLAS_STATUS_SUCCESS) usable.push_back(result.algo);
    return usable;
}

// A ScaledProduct.
struct ScaledShape {
    DType dtype;
    int m, n, k, batch;
    bool left_transposed, right_transposed, tf32;
    std::uintptr_t alignment;  // of all matrices, in bytes
    auto operator<=>(const ScaledShape&) const = default;
};
// Column-major, the row-major product out = left right is out^T = right^T left^T: A is `right`, B is `left`.
inline Plan describe(const ScaledShape& shape) {
    Plan plan;
    const cudaDataType_t type = shape.dtype == DType::bf16 ? CUDA_R_16BF : CUDA_R_32F;
    const auto [m, n, k] = std::tuple(shape.m, shape.n, shape.k);
    plan.description = make_description(shape.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F);
    plan.a = shape.right_transposed ? make_layout(type, k, n, shape.batch) : make_layout(type, n, k, shape.batch);
    plan.b = shape.left_transposed ? make_layout(type, m, k, shape.batch) : make_layout(type, k, m, shape.batch);
    plan.d = make_layout(type, n, m, shape.batch);
    if (shape.right_transposed) set(plan.description, CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
    if (shape.left_transposed) set(plan.description, CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_T);
    return plan;
}

// Whether this library can run the algorithm on this GPU, within the workspace and with an allowed reduction scheme.
inline bool accepts(const Library& library, std::size_t workspace_bytes, const Plan& plan, const ProductShape& shape,
                    const Algorithm& algorithm) {
    cublasLtMatmulHeuristicResult_t result{};
    if (cublasLtMatmulAlgoCheck(library.get(), plan.description.get(), plan.a.get(), plan.b.get(), plan.d.get(),
                                plan.d.get(), &algorithm, &result) != CUBLAS_STATUS_SUCCESS)
        return false;
    std::uint32_t reduction = 0;
    std::size_t written = 0;
    return result.workspaceSize <= workspace_bytes &&
           cublasLtMatmulAlgoConfigGetAttribute(&algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &reduction,
                                                sizeof reduction, &written) == CUBLAS_STATUS_SUCCESS &&
           (reduction & ~reductions_of(shape)) == 0;
}

// The library's algorithms, and if more than one is requested, the first four with other numbers of parts of k, which
// its estimate of time may have left out. Partial sums need workspace: for 128 MiB a result of at most 16 M elements.
inline std::vector<Algorithm> algorithms(const Library& library, std::size_t workspace_bytes, const Plan& plan,
                                         const ProductShape& shape, int most) {
    constexpr std::int32_t kParts[] = {2, 3, 4, 6, 8, 12, 16};
    std::vector<Algorithm> all = search(library, workspace_bytes, plan, reductions_of(shape), shape.alignment, most);
    const std::size_t found = most > 1 ? std::min<std::size_t>(all.size(), 4) : 0;
    for (std::size_t i = 0; i < found; ++i)
        for (const std::int32_t parts : kParts) {
            Algorithm other = all[i];
            set(other, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, parts);
            set(other, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, std::uint32_t(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
            const auto is_other = [&](const Algorithm& known) { return !std::memcmp(&known, &other, sizeof other); };
            if (accepts(library, workspace_bytes, plan, shape, other) && std::ranges::none_of(all, is_other))
                all.push_back(other);
        }
    return all;
}

}  // namespace kernels::cublaslt
