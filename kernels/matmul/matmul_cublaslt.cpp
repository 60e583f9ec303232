// matmul_cublaslt.cpp - matmul.h on a GPU
//
// cuBLASLt thinks in columns: a row-major matrix (r, c) is to it a column-major one (c, r). D = op(A) op(B), (m, n) =
// (m, k) (k, n) column-major, is:
//
//                      m     n     k     A              B             D         fused epilogue
//   forward            out   rows  in    weight^T       in            out       BIAS; bf16 also GELU_AUX(_BIAS), which
//                      writes `pre`
//   backward, input    in    rows  out   weight         dout          din       bf16: DGELU, which reads `pre`
//   backward, weight   in    out   rows  in             dout^T        dweight   BGRADB: sums of B along k, one per
//                      column of D
//
// Which epilogues have an algorithm depends on the shape and the GPU. Each shape is planned once: the fused form where
// the library offers one, else the bare product followed by our own kernel, and where it has not even that, as for
// products of one row on some GPUs, plain_product.h. GELU in fp32 is always our own: the
// accuracy of the library's tanh is not documented.
#include <cublasLt.h>

#include <algorithm>
#include <compare>
#include <map>
#include <memory>
#include <type_traits>

#include "kernels/bias_gradient.h"
#include "kernels/device/checked_cuda.h"
#include "kernels/device/memory.h"
#include "kernels/gelu.h"
#include "kernels/matmul/check.h"
#include "kernels/matmul/plain_product.h"

namespace kernels {
namespace {

// What NVIDIA recommends for Hopper (cuBLAS documentation, cublasSetWorkspace); earlier GPUs need less.
constexpr std::size_t kWorkspaceBytes = std::size_t(32) << 20;

// The documented rule for the leading dimension of what GELU_AUX writes and DGELU reads.
constexpr int kAuxiliaryMultiple = 8;

std::string fault_of(cublasStatus_t status) {
    if (status == CUBLAS_STATUS_SUCCESS) return {};
    return std::string(cublasLtGetStatusName(status)) + ", " + cublasLtGetStatusString(status);
}

template <class Handle, auto Destroy>
struct Destroyer {
    void operator()(Handle handle) const noexcept { Destroy(handle); }
};
template <class Handle, auto Destroy>
using Owner = std::unique_ptr<std::remove_pointer_t<Handle>, Destroyer<Handle, Destroy>>;

using Library = Owner<cublasLtHandle_t, cublasLtDestroy>;
using Description = Owner<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using Layout = Owner<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Preference = Owner<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

Library make_library() {
    cublasLtHandle_t handle = nullptr;
    CHECKED(cublasLtCreate(&handle));
    return Library(handle);
}
Description make_description(cublasComputeType_t compute) {
    cublasLtMatmulDesc_t handle = nullptr;
    CHECKED(cublasLtMatmulDescCreate(&handle, compute, CUDA_R_32F));
    return Description(handle);
}
Layout make_layout(cudaDataType_t type, std::int64_t rows, std::int64_t columns) {  // column-major and dense
    cublasLtMatrixLayout_t handle = nullptr;
    CHECKED(cublasLtMatrixLayoutCreate(&handle, type, rows, columns, rows));
    return Layout(handle);
}
Preference make_preference() {
    cublasLtMatmulPreference_t handle = nullptr;
    CHECKED(cublasLtMatmulPreferenceCreate(&handle));
    return Preference(handle);
}
template <class Value>
void set(const Description& description, cublasLtMatmulDescAttributes_t attribute, const Value& value) {
    CHECKED(cublasLtMatmulDescSetAttribute(description.get(), attribute, &value, sizeof value));
}
template <class Value>
void set(const Preference& preference, cublasLtMatmulPreferenceAttributes_t attribute, const Value& value) {
    CHECKED(cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof value));
}

enum class Product { forward, backward_input, backward_weight };

struct Shape {
    Product product;
    DType dtype;
    int rows, in_channels, out_channels;
    bool biased, with_gelu, accumulate;
    std::uintptr_t alignment;  // of all tensors, in bytes: algorithms are chosen by it
    auto operator<=>(const Shape&) const = default;
    std::string call() const {
        const char* name = product == Product::forward          ? "forward"
                           : product == Product::backward_input ? "backward_input"
                                                                : "backward_weight";
        return std::string("matmul ") + name + (dtype == DType::bf16 ? " bf16" : " fp32") + ", rows " +
               std::to_string(rows) + ", in_channels " + std::to_string(in_channels) + ", out_channels " +
               std::to_string(out_channels);
    }
};

// Addresses of one call. `bias` is read by a forward product and written by BGRADB.
struct Operands {
    const void *a, *b;
    void* d;
    const void* bias = nullptr;
    const void* auxiliary = nullptr;

    std::uintptr_t alignment() const {
        std::uintptr_t bits = kTensorAlignment;
        for (const void* address : {a, b, static_cast<const void*>(d), bias, auxiliary})
            bits |= reinterpret_cast<std::uintptr_t>(address);
        return bits & (~bits + 1);
    }
};

struct Plan {
    Description description;
    Layout a, b, d;
    cublasLtMatmulAlgo_t algorithm;
    bool fused_gelu = false, fused_bias_gradient = false;
    bool by_library = true;
};

// The product of `shape` without the library. T is the type of all tensors but a weight's gradient, which is float.
template <class T>
void run_plain(const Shape& shape, const Operands& operands, StreamRef stream) {
    const std::int64_t rows = shape.rows, in = shape.in_channels, out = shape.out_channels;
    const T* const a = static_cast<const T*>(operands.a);
    const T* const b = static_cast<const T*>(operands.b);
    const auto result = [&]<class Out>(Out* d, std::int64_t m, std::int64_t n, std::int64_t k, MatrixView<T> left,
                                       MatrixView<T> right, const void* bias) {
        plain_product<T, Out>({{d, std::size_t(m * n)}, left, right, static_cast<const T*>(bias), int(m), int(n),
                               int(k), shape.accumulate}, stream);
    };
    switch (shape.product) {
        case Product::forward:  // in weight^T
            return result(static_cast<T*>(operands.d), rows, out, in, {b, in, 1}, {a, 1, in}, operands.bias);
        case Product::backward_input:  // dout weight
            return result(static_cast<T*>(operands.d), rows, in, out, {b, out, 1}, {a, in, 1}, nullptr);
        case Product::backward_weight:  // dout^T in
            return result(static_cast<float*>(operands.d), out, in, rows, {b, 1, out}, {a, in, 1}, nullptr);
    }
}

cublasLtEpilogue_t epilogue_of(const Shape& shape, bool fuse) {
    switch (shape.product) {
        case Product::forward:
            if (fuse && shape.with_gelu)
                return shape.biased ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
            return shape.biased ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
        case Product::backward_input:
            return fuse && shape.with_gelu ? CUBLASLT_EPILOGUE_DGELU : CUBLASLT_EPILOGUE_DEFAULT;
        case Product::backward_weight:
            return fuse && shape.biased ? CUBLASLT_EPILOGUE_BGRADB : CUBLASLT_EPILOGUE_DEFAULT;
    }
    return CUBLASLT_EPILOGUE_DEFAULT;
}

// Only what the epilogue names may be set: an address that it does not use would make the library refuse.
void set_addresses(const Plan& plan, const Shape& shape, const Operands& operands) {
    if (shape.product == Product::backward_weight ? plan.fused_bias_gradient : shape.biased)
        set(plan.description, CUBLASLT_MATMUL_DESC_BIAS_POINTER, operands.bias);
    if (plan.fused_gelu) set(plan.description, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, operands.auxiliary);
}

}  // namespace

struct Matmul::State {
    MatmulOptions options;
    Library library = make_library();
    std::map<Shape, Plan> plans;
    device::Workspace workspace;
    device::Workspace bias_scratch;  // one vector of channels for BGRADB, then the scratch of bias_gradient

    // False: the library has no algorithm for this form.
    bool plan_form(Plan& plan, const Shape& shape, const Operands& operands, bool fuse) const {
        const cudaDataType_t type = shape.dtype == DType::bf16 ? CUDA_R_16BF : CUDA_R_32F;
        const std::int64_t rows = shape.rows, in = shape.in_channels, out = shape.out_channels;
        const bool tf32 = shape.dtype == DType::fp32 && options.tf32;
        plan.description = make_description(tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F);
        plan.a = shape.product == Product::backward_weight ? make_layout(type, in, rows) : make_layout(type, in, out);
        plan.b = shape.product == Product::forward ? make_layout(type, in, rows) : make_layout(type, out, rows);
        plan.d = shape.product == Product::forward         ? make_layout(type, out, rows)
                 : shape.product == Product::backward_input ? make_layout(type, in, rows)
                                                            : make_layout(CUDA_R_32F, in, out);
        if (shape.product == Product::forward) set(plan.description, CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
        if (shape.product == Product::backward_weight) set(plan.description, CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_T);

        set(plan.description, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue_of(shape, fuse));
        plan.fused_gelu = fuse && shape.with_gelu;
        plan.fused_bias_gradient = fuse && shape.product == Product::backward_weight && shape.biased;
        if (plan.fused_gelu)
            set(plan.description, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, shape.product == Product::forward ? out : in);
        set_addresses(plan, shape, operands);

        const Preference preference = make_preference();
        set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace.bytes());
        // Partial sums of a product cut along k stay in float, whatever the result's type.
        set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
            std::uint32_t(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
        for (const auto attribute :
             {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
              CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
            set(preference, attribute, std::uint32_t(shape.alignment));
        cublasLtMatmulHeuristicResult_t result{};
        int found = 0;
        const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
            library.get(), plan.description.get(), plan.a.get(), plan.b.get(), plan.d.get(), plan.d.get(),
            preference.get(), 1, &result, &found);
        if (status == CUBLAS_STATUS_NOT_SUPPORTED || (status == CUBLAS_STATUS_SUCCESS && found == 0)) return false;
        // how some versions say that they lack an epilogue
        if (status == CUBLAS_STATUS_INVALID_VALUE && fuse) return false;
        CHECKED(status);
        CHECKED(result.state);
        plan.algorithm = result.algo;
        return true;
    }

    Plan& plan_for(const Shape& shape, const Operands& operands) {
        const auto known = plans.find(shape);
        if (known != plans.end()) return known->second;
        workspace.at_least(kWorkspaceBytes);
        const int auxiliary_rows = shape.product == Product::forward ? shape.out_channels : shape.in_channels;
        const bool may_fuse_gelu = !shape.with_gelu ||
                                   (shape.dtype == DType::bf16 && auxiliary_rows % kAuxiliaryMultiple == 0);
        Plan plan;
        plan.by_library = (may_fuse_gelu && plan_form(plan, shape, operands, true)) ||
                          plan_form(plan, shape, operands, false);
        return plans.emplace(shape, std::move(plan)).first->second;
    }

    void run(const Plan& plan, const Shape& shape, const Operands& operands, StreamRef stream) {
        if (!plan.by_library)
            return shape.dtype == DType::bf16 ? run_plain<bf16>(shape, operands, stream)
                                              : run_plain<float>(shape, operands, stream);
        set_addresses(plan, shape, operands);
        const float alpha = 1.0f, beta = shape.accumulate ? 1.0f : 0.0f;
        const cublasStatus_t status = cublasLtMatmul(library.get(), plan.description.get(), &alpha, operands.a,
                                                     plan.a.get(), operands.b, plan.b.get(), &beta, operands.d,
                                                     plan.d.get(), operands.d, plan.d.get(), &plan.algorithm,
                                                     workspace.data(), workspace.bytes(), stream);
        if (status != CUBLAS_STATUS_SUCCESS)
            throw Error("cublasLtMatmul failed for " + shape.call() + ": " + cublasLtGetStatusName(status) + ", " +
                            cublasLtGetStatusString(status),
                        Blame::runtime);
    }
};

Matmul::Matmul(const MatmulOptions& options) : state_(new State{options}) {}
Matmul::~Matmul() = default;
Matmul::Matmul(Matmul&&) noexcept = default;
Matmul& Matmul::operator=(Matmul&&) noexcept = default;

template <class T>
void Matmul::forward(const LinearForward<T>& op, StreamRef stream) {
    matmul_check::check(op);
    const bool with_gelu = !op.pre.empty();
    Operands operands{op.weight.data(), op.in.data(), op.out.data(), op.bias.empty() ? nullptr : op.bias.data(),
                      with_gelu ? op.pre.data() : nullptr};
    const Shape shape{Product::forward, dtype_of<T>, op.rows, op.in_channels, op.out_channels, !op.bias.empty(),
                      with_gelu, false, operands.alignment()};
    const Plan& plan = state_->plan_for(shape, operands);
    if (with_gelu && !plan.fused_gelu) {
        operands.d = op.pre.data();
        state_->run(plan, shape, operands, stream);
        const std::size_t elements = std::size_t(op.rows) * op.out_channels;
        gelu_forward<T>({op.out.first(elements), op.pre.first(elements)}, stream);
    } else state_->run(plan, shape, operands, stream);
}

template <class T>
void Matmul::backward_input(const LinearBackwardInput<T>& op, StreamRef stream) {
    matmul_check::check(op);
    const bool with_gelu = !op.pre.empty();
    const Operands operands{op.weight.data(), op.dout.data(), op.din.data(), nullptr,
                            with_gelu ? op.pre.data() : nullptr};
    const Shape shape{Product::backward_input, dtype_of<T>, op.rows, op.in_channels, op.out_channels, false, with_gelu,
                      false, operands.alignment()};
    const Plan& plan = state_->plan_for(shape, operands);
    state_->run(plan, shape, operands, stream);
    if (with_gelu && !plan.fused_gelu) {
        const std::size_t elements = std::size_t(op.rows) * op.in_channels;
        gelu_backward<T>({op.din.first(elements), op.din.first(elements), op.pre.first(elements)}, stream);
    }
}

template <class T>
void Matmul::backward_weight(const LinearBackwardWeight<T>& op, StreamRef stream) {
    matmul_check::check(op);
    const bool biased = !op.dbias.empty();
    const std::size_t channels = op.out_channels, scratch_floats = biased ? bias_gradient_scratch(op.out_channels) : 0;
    if (biased) state_->bias_scratch.at_least((channels + scratch_floats) * sizeof(float));
    // BGRADB overwrites, so what is added to gets its sums from here
    float* const sums = reinterpret_cast<float*>(state_->bias_scratch.data());
    const Operands operands{op.in.data(), op.dout.data(), op.dweight.data(),
                            !biased ? nullptr : op.accumulate ? sums : op.dbias.data()};
    const Shape shape{Product::backward_weight, dtype_of<T>, op.rows, op.in_channels, op.out_channels, biased, false,
                      op.accumulate, operands.alignment()};
    const Plan& plan = state_->plan_for(shape, operands);
    state_->run(plan, shape, operands, stream);
    if (!biased) return;
    const std::span<float> scratch{sums + channels, scratch_floats};
    if (!plan.fused_bias_gradient)
        bias_gradient<T>({op.dbias, scratch, op.dout, op.rows, op.out_channels, op.accumulate}, stream);
    else if (op.accumulate)
        bias_gradient<float>({op.dbias, scratch, {sums, channels}, 1, op.out_channels, true}, stream);
}

std::size_t Matmul::workspace_bytes() const {
    return std::max(kWorkspaceBytes, state_->workspace.bytes()) + state_->bias_scratch.bytes();
}

std::string Matmul::describe(DType dtype) {
    const std::size_t version = cublasLtGetVersion();  // 13.1.2 is 130102
    return "cuBLASLt " + std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
           std::to_string(version % 100) +
           (dtype == DType::fp32 && state_->options.tf32 ? "; fp32 products by TF32" : "");
}

template void Matmul::forward(const LinearForward<float>&, StreamRef);
template void Matmul::forward(const LinearForward<bf16>&, StreamRef);
template void Matmul::backward_input(const LinearBackwardInput<float>&, StreamRef);
template void Matmul::backward_input(const LinearBackwardInput<bf16>&, StreamRef);
template void Matmul::backward_weight(const LinearBackwardWeight<float>&, StreamRef);
template void Matmul::backward_weight(const LinearBackwardWeight<bf16>&, StreamRef);

}  // namespace kernels
