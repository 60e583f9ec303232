// matmul_cublaslt.cpp - matmul.h on a GPU
//
// cuBLASLt is column-major: it sees a row-major matrix (r, c) as a column-major one (c, r). D = op(A) op(B), (m, n) =
// (m, k) (k, n) column-major, is:
//
//                      m     n     k     A              B             D         fused epilogues (1, 2, 3)
//   forward            out   rows  in    weight^T       in            out       BIAS, (3); in bf16 also GELU_AUX(_BIAS)
//   backward, input    in    rows  out   weight         dout          din       in bf16 DGELU(_BGRAD)
//   backward, weight   in    out   rows  in             dout^T        dweight
//   fp8                n     m     k     right^T        left          out
//
// cuDNN computes the two products with GELU, too (product_cudnn.h).
//
// (1) GELU_AUX writes `pre`. (2) DGELU reads `pre`. DGELU_BGRAD also sums D's rows, and stores the sums in D's type
// (cublasLt.h, BIAS_POINTER): they are added separately. (3) beta = 1 adds the residual, C.
//
// Which epilogues cuBLASLt supports depends on the shape and the GPU. A fused epilogue is not always faster: split-k,
// for example, may be unavailable with it. So autotuning times algorithms with and without fused epilogues
// (algorithm_choice.h), each with the additional kernels that it needs.
// Without autotuning the most fused form that has an algorithm is used, with the library's first algorithm that sums in
// a fixed order. If the library has no algorithm, as for matmuls of one row on some GPUs, plain_product.h is used. Each
// shape is planned once.
//
// An algorithm is stored as the 64 bytes of cublasLtMatmulAlgo_t, with the version of the library: cublasLt.h documents
// that they can be stored and used again with the same version. Storing its attributes (tile, stages, split-k, ...)
// instead would be readable, but the documentation does not say that they determine an algorithm completely.
#include <cublasLt.h>

#include <algorithm>
#include <map>
#include <optional>

#include "kernels/bias_gradient.h"
#include "kernels/device/memory.h"
#include "kernels/gelu.h"
#include "kernels/matmul/algorithm_choice.h"
#include "kernels/matmul/check.h"
#include "kernels/matmul/cublaslt_plan.h"
#include "kernels/matmul/plain_product.h"
#include "kernels/matmul/product_cudnn.h"
#include "kernels/matmul/rehearsal.h"

namespace kernels {
namespace {

using namespace cublaslt;

// Maximum workspace, in bytes. It depends only on the GPU, not on free memory: if a run with little free memory used a
// smaller workspace, it could not use an algorithm that another run stored, and its results would differ bitwise.
// NVIDIA recommends 32 MiB for Hopper (cuBLAS documentation, cublasSetWorkspace); the weight gradient of a 768 x 3072
// layer with split-k 8 takes 72 MiB for partial sums.
std::size_t max_workspace_bytes() {
    int device = 0, major = 0;
    CHECKED(cudaGetDevice(&device));
    CHECKED(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
    return std::size_t(major >= 9 ? 128 : 32) << 20;
}

// The product of `shape` without the library. T is the type of all tensors but a weight's gradient, which is float.
template <class T>
void run_plain(const ProductShape& shape, const Operands& operands, StreamRef stream) {
    const std::int64_t rows = shape.rows, in = shape.in_channels, out = shape.out_channels;
    const T* const a = static_cast<const T*>(operands.a);
    const T* const b = static_cast<const T*>(operands.b);
    const auto result = [&]<class Out>(Out* d, std::int64_t m, std::int64_t n, std::int64_t k, MatrixView<T> left,
                                       MatrixView<T> right, const void* bias) {
        plain_product<T, Out>({{d, std::size_t(m * n)}, left, right, static_cast<const T*>(bias), int(m), int(n),
                               int(k), 1, shape.accumulate ? 1.0f : 0.0f, shape.accumulate ? d : nullptr}, stream);
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

}  // namespace

struct Matmul::State {
    MatmulSettings settings;
    Library library = make_library();
    const std::size_t workspace_bytes = max_workspace_bytes();
    std::map<ProductShape, Plan> plans{};
    std::map<ScaledShape, Plan> scaled_plans{};
    CudnnProduct cudnn{};
    device::Workspace workspace{};
    device::Workspace bias_scratch{};  // one vector of channels for the library's sums, then bias_gradient's scratch

    static std::string name() {
        const std::size_t version = cublasLtGetVersion();  // 13.1.2 is 130102
        return "cuBLASLt " + std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
               std::to_string(version % 100);
    }
    bool tf32(DType dtype) const { return dtype == DType::fp32 && settings.tf32; }

    Plan plan_of(const ProductShape& shape, const Operands& operands, const ChosenAlgorithm& chosen) {
        if (chosen.form.cudnn)
            return {.form = chosen.form, .cudnn_plan = cudnn.build(shape, chosen.algorithm, workspace.bytes())};
        Plan plan = cublaslt::describe(shape, operands, chosen.form);
        std::ranges::copy(std::as_bytes(std::span(chosen.algorithm)),
                          std::as_writable_bytes(std::span(&plan.algorithm, 1)).begin());
        return plan;
    }
    // cuBLASLt for one call, which must outlive it. All timed runs share the memory that the first one allocates.
    template <class Op>
    class LibraryOfCall final : public ProductLibrary {
    public:
        LibraryOfCall(State& state, const ProductShape& shape, const Op& op, StreamRef stream)
            : state_(state), shape_(shape), op_(op), stream_(stream) {}
        std::string name() const override { return State::name(); }
        std::vector<AlgorithmBytes> algorithms(const ProductForm& form, int most) override {
            std::vector<AlgorithmBytes> all;
            if (form.cudnn) {
                all = state_.cudnn.algorithms(shape_);
                all.resize(std::min(all.size(), std::size_t(most)));
                return all;
            }
            const Plan plan = cublaslt::describe(shape_, state_.operands_of(op_), form);
            for (const Algorithm& found :
                 cublaslt::algorithms(state_.library, state_.workspace.bytes(), plan, shape_, most)) {
                const auto* const bytes = reinterpret_cast<const unsigned char*>(&found);
                all.emplace_back(bytes, bytes + sizeof found);
            }
            return all;
        }
        bool accepts(const ChosenAlgorithm& chosen) override {
            if (chosen.form.cudnn) return std::ranges::count(state_.cudnn.algorithms(shape_), chosen.algorithm) > 0;
            if (chosen.algorithm.size() != sizeof(Algorithm)) return false;
            const Plan plan = state_.plan_of(shape_, state_.operands_of(op_), chosen);
            return cublaslt::accepts(state_.library, state_.workspace.bytes(), plan, shape_, plan.algorithm);
        }
        void run(const ChosenAlgorithm& chosen) override {
            if (!rehearsal_) rehearsal_.emplace(op_, stream_);
            auto& plans = rehearsal_->plans;
            auto known = std::ranges::find(plans, chosen, [](const auto& entry) { return entry.first; });
            if (known == plans.end())
                known = plans.emplace(known, chosen,
                                      state_.plan_of(shape_, state_.operands_of(rehearsal_->op), chosen));
            state_.execute(known->second, shape_, rehearsal_->op, stream_);
        }
        // The order of a fused bias gradient's sums is not documented to be fixed. cuDNN documents notes of
        // nondeterminism, but lacks some (cudnn_graph.h).
        bool repeats(const ChosenAlgorithm& chosen) override {
            const auto again = [&] { run(chosen); };
            if (chosen.form.cudnn) return rehearsal_->repeats_result(again, stream_);
            return !chosen.form.bias_gradient || rehearsal_->repeats_bias_gradient(again, stream_);
        }

    private:
        State& state_;
        const ProductShape& shape_;
        const Op& op_;
        StreamRef stream_;
        std::optional<Rehearsal<Op, Plan>> rehearsal_;
    };

    template <class Op>
    const Plan& plan_for(const ProductShape& shape, const Op& op, StreamRef stream) {
        if (const auto known = plans.find(shape); known != plans.end()) return known->second;
        workspace.at_least(workspace_bytes);
        LibraryOfCall<Op> library_of_call(*this, shape, op, stream);
        const auto chosen = choose_algorithm(shape, library_of_call, settings.tuned, stream);
        Plan plan;
        if (chosen) plan = plan_of(shape, operands_of(op), *chosen);
        else plan.by_library = false;
        return plans.emplace(shape, std::move(plan)).first->second;
    }

    float* sums() const { return reinterpret_cast<float*>(bias_scratch.data()); }
    // Called before operands_of() for a call that sums a bias gradient.
    void make_room_for_sums(std::span<float> dbias, int channels) {
        if (!dbias.empty())
            bias_scratch.at_least((std::size_t(channels) + bias_gradient_scratch(channels)) * sizeof(float));
    }
    std::span<float> scratch(int channels) const { return {sums() + channels, bias_gradient_scratch(channels)}; }

    template <class T> Operands operands_of(const LinearForward<T>& op) const {
        return {op.weight.data(), op.in.data(), op.out.data(), op.bias.empty() ? nullptr : op.bias.data(),
                op.pre.empty() ? nullptr : op.pre.data()};
    }
    template <class T> Operands operands_of(const LinearBackwardInput<T>& op) const {
        return {op.weight.data(), op.dout.data(), op.din.data(), op.dbias.empty() ? nullptr : sums(),
                op.pre.empty() ? nullptr : op.pre.data()};
    }
    template <class T> Operands operands_of(const LinearBackwardWeight<T>& op) const {
        return {op.in.data(), op.dout.data(), op.dweight.data()};
    }
    template <class Left, class Out> Operands operands_of(const Fp8Product<Left, Out>& op) const {
        return {.a = op.right.data(), .b = op.left.data(), .d = op.out.data(), .a_factor = op.right_factor.data(),
                .b_factor = op.left_factor.data(), .factor = op.factor};
    }
    template <class T> Operands operands_of(const LinearLayerNormForward<T>& op) const {
        return {op.linear.weight.data(), op.linear.in.data(), op.linear.out.data(),
                op.linear.bias.empty() ? nullptr : op.linear.bias.data(), op.norm.residual.data(), op.norm.left.data()};
    }

    void multiply(const Plan& plan, const ProductShape& shape, const Operands& operands, StreamRef stream) {
        if (plan.form.cudnn)
            return cudnn.run(shape, plan.cudnn_plan,
                             {operands.b, operands.a, operands.bias, const_cast<void*>(operands.auxiliary), operands.d},
                             workspace.data(), stream);
        require(plan.by_library || !shape.fp8, "the product", shape.call(), "one that cuBLASLt has", "use --fp8 off");
        if (!plan.by_library)
            return shape.dtype == DType::bf16 ? run_plain<bf16>(shape, operands, stream)
                                              : run_plain<float>(shape, operands, stream);
        set_addresses(plan, shape, operands);
        run_by_library(plan, operands, operands.factor, shape.accumulate || plan.form.residual ? 1.0f : 0.0f,
                       plan.form.residual ? operands.addend : operands.d, stream, [&] { return shape.call(); });
    }
    // D = alpha op(A) op(B) + beta addend. `what` names the product in an error.
    template <class What>
    void run_by_library(const Plan& plan, const Operands& operands, float alpha, float beta, const void* addend,
                        StreamRef stream, What&& what) {
        const cublasStatus_t status = cublasLtMatmul(library.get(), plan.description.get(), &alpha, operands.a,
                                                     plan.a.get(), operands.b, plan.b.get(), &beta, addend,
                                                     plan.d.get(), operands.d, plan.d.get(), &plan.algorithm,
                                                     workspace.data(), workspace.bytes(), stream);
        if (status != CUBLAS_STATUS_SUCCESS)
            throw Error("cublasLtMatmul failed for " + what() + ": " + fault_of(status), Blame::runtime);
    }

    template <class T>
    void execute(const Plan& plan, const ProductShape& shape, const LinearForward<T>& op, StreamRef stream) {
        Operands operands = operands_of(op);
        const bool own_gelu = shape.with_gelu && !plan.form.gelu;
        if (own_gelu) operands.d = op.pre.data();
        multiply(plan, shape, operands, stream);
        if (!own_gelu) return;
        const std::size_t elements = std::size_t(op.rows) * op.out_channels;
        gelu_forward<T>({op.out.first(elements), op.pre.first(elements)}, stream);
    }

    template <class T>
    void execute(const Plan& plan, const ProductShape& shape, const LinearLayerNormForward<T>& op, StreamRef stream) {
        const ResidualLayerNormForward<T>& norm = op.norm;
        Operands operands = operands_of(op);
        if (plan.form.residual) operands.d = norm.residual.data();
        multiply(plan, shape, operands, stream);
        if (!plan.form.residual) return residual_layernorm_forward(norm, stream);
        layernorm_forward<T>({norm.normed, norm.mean, norm.rstd, norm.residual, norm.weight, norm.bias, norm.rows,
                              norm.channels}, stream);
    }

    template <class T>
    void execute(const Plan& plan, const ProductShape& shape, const LinearBackwardInput<T>& op, StreamRef stream) {
        multiply(plan, shape, operands_of(op), stream);
        const std::size_t channels = std::size_t(op.in_channels), elements = std::size_t(op.rows) * channels;
        if (shape.with_gelu && !plan.form.gelu)
            gelu_backward<T>({op.din.first(elements), op.din.first(elements), op.pre.first(elements)}, stream);
        if (op.dbias.empty()) return;
        const bool summed = plan.form.bias_gradient;
        const std::span<const T> of = summed ? std::span(reinterpret_cast<const T*>(sums()), channels) : op.din;
        bias_gradient<T>({op.dbias, scratch(op.in_channels), of, summed ? 1 : op.rows, op.in_channels, op.accumulate},
                         stream);
    }

    // LinearBackwardWeight, Fp8Product
    template <class Op>
    void execute(const Plan& plan, const ProductShape& shape, const Op& op, StreamRef stream) {
        multiply(plan, shape, operands_of(op), stream);
    }

    const Plan& plan_for(const ScaledShape& shape) {
        if (const auto known = scaled_plans.find(shape); known != scaled_plans.end()) return known->second;
        workspace.at_least(workspace_bytes);
        Plan plan = cublaslt::describe(shape);
        const auto found = search(library, workspace.bytes(), plan, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE,
                                  shape.alignment, 1);
        if (found.empty()) plan.by_library = false;
        else plan.algorithm = found.front();
        return scaled_plans.emplace(shape, std::move(plan)).first->second;
    }

    template <class T> void multiply(const ScaledProduct<T>& op, StreamRef stream) {
        const Operands operands{op.right.data(), op.left.data(), op.out.data(), nullptr,
                                op.beta != 0 ? op.addend.data() : nullptr};
        const Plan& plan = plan_for({dtype_of<T>, op.m, op.n, op.k, op.batch, op.left_transposed, op.right_transposed,
                                     tf32(dtype_of<T>), operands.alignment()});
        if (!plan.by_library) return multiply_plainly(op, stream);
        run_by_library(plan, operands, op.alpha, op.beta, op.beta != 0 ? op.addend.data() : op.out.data(), stream, [&] {
            return std::to_string(op.batch) + " products of " + std::to_string(op.m) + " x " + std::to_string(op.k) +
                   " x " + std::to_string(op.n);
        });
    }

    template <class T> static void multiply_plainly(const ScaledProduct<T>& op, StreamRef stream) {
        const std::int64_t m = op.m, n = op.n, k = op.k;
        for (int i = 0; i < op.batch; ++i) {
            const T *const left = op.left.data() + i * m * k, *const right = op.right.data() + i * k * n;
            plain_product<T, T>({op.out.subspan(std::size_t(i * m * n), std::size_t(m * n)),
                                 op.left_transposed ? MatrixView<T>{left, 1, m} : MatrixView<T>{left, k, 1},
                                 op.right_transposed ? MatrixView<T>{right, 1, k} : MatrixView<T>{right, n, 1},
                                 nullptr, op.m, op.n, op.k, op.alpha, op.beta,
                                 op.beta != 0 ? op.addend.data() + i * m * n : nullptr}, stream);
        }
    }

    template <class Op>
    void plan_and_execute(ProductShape shape, const Op& op, StreamRef stream) {
        shape.alignment = operands_of(op).alignment();
        execute(plan_for(shape, op, stream), shape, op, stream);
    }
};

Matmul::Matmul(const MatmulSettings& settings) : state_(new State{settings}) {}
Matmul::~Matmul() = default;
Matmul::Matmul(Matmul&&) noexcept = default;
Matmul& Matmul::operator=(Matmul&&) noexcept = default;

template <class T>
void Matmul::forward(const LinearForward<T>& op, StreamRef stream) {
    matmul_check::check(op);
    state_->plan_and_execute({Product::forward, dtype_of<T>, op.rows, op.in_channels, op.out_channels,
                              !op.bias.empty(), !op.pre.empty(), false, state_->tf32(dtype_of<T>)}, op, stream);
}

template <class T>
void Matmul::forward_layernorm(const LinearLayerNormForward<T>& op, StreamRef stream) {
    matmul_check::check(op);
    const LinearForward<T>& linear = op.linear;
    state_->plan_and_execute({Product::forward, dtype_of<T>, linear.rows, linear.in_channels, linear.out_channels,
                              !linear.bias.empty(), false, false, state_->tf32(dtype_of<T>), true}, op, stream);
}

template <class T>
void Matmul::backward_input(const LinearBackwardInput<T>& op, StreamRef stream) {
    matmul_check::check(op);
    state_->make_room_for_sums(op.dbias, op.in_channels);
    state_->plan_and_execute({Product::backward_input, dtype_of<T>, op.rows, op.in_channels, op.out_channels,
                              !op.dbias.empty(), !op.pre.empty(), false, state_->tf32(dtype_of<T>)}, op, stream);
}

template <class T>
void Matmul::backward_weight(const LinearBackwardWeight<T>& op, StreamRef stream) {
    matmul_check::check(op);
    state_->plan_and_execute({Product::backward_weight, dtype_of<T>, op.rows, op.in_channels, op.out_channels, false,
                              false, op.accumulate, state_->tf32(dtype_of<T>)}, op, stream);
}

template <class T>
void Matmul::multiply(const ScaledProduct<T>& op, StreamRef stream) {
    matmul_check::check(op);
    state_->multiply(op, stream);
}

template <class T>
void Matmul::multiply(const SymmetricProduct<T>& op, StreamRef stream) {
    matmul_check::check(op);
    state_->multiply(op.whole(), stream);
}

template <class Left, class Out>
void Matmul::multiply(const Fp8Product<Left, Out>& op, StreamRef stream) {
    matmul_check::check(op);
    ProductShape shape{.product = Product::forward, .dtype = DType::bf16, .rows = op.m, .in_channels = op.k,
                       .out_channels = op.n, .accumulate = op.accumulate, .fp8 = true};
    if constexpr (std::is_same_v<Left, e5m2>) {
        const bool of_weight = std::is_same_v<Out, float>;
        shape.product = of_weight ? Product::backward_weight : Product::backward_input;
        shape.rows = of_weight ? op.k : op.m;
        shape.in_channels = op.n;
        shape.out_channels = of_weight ? op.m : op.k;
    }
    state_->plan_and_execute(shape, op, stream);
}

bool Matmul::chooses_by_shape() { return true; }
void Matmul::replan() { state_->plans.clear(); }

std::string Matmul::library() const { return State::name(); }

std::size_t Matmul::workspace_bytes() const {
    return state_->workspace_bytes + state_->bias_scratch.bytes();
}

std::string Matmul::describe(DType dtype) {
    return library() + (state_->tf32(dtype) ? "; fp32 products by TF32" : "");
}

}  // namespace kernels

#include "kernels/matmul/instances.h"
