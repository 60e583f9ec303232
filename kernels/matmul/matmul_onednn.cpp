// matmul_onednn.cpp - matmul.h on a CPU
//
// oneDNN 2.6 has two families of GEMM: "brg" (batch-reduce kernels, which copy a factor into panels during the product)
// and "gemm" (the older packed driver, which dnnl_sgemm calls, too). Measured on 2 cores of Zen 5 (AVX-512 BF16),
// GFLOP/s at 256 rows and channels 768 -> 3072, 3072 -> 768 and 768 -> 50304:
//
//                             fp32 brg        fp32 gemm       bf16 brg        bf16 gemm
//   forward                   481 487 465     400 302 402     949 953 933     856 871 756
//   backward, input           412 434 344     489 450 493     887 890 845     884 875 893
//   backward, weight          507 438 494     468 488 472     963 949 892     928 1001 956
//   backward, weight, added   386 388 384     476 474 478     637 608 604     749 879 -
//
// Reordering the weights to oneDNN's layout before each product (they change every step) was always slower: it takes
// 15-30 % of the product's time.
// So forward uses brg with a fused bias, fp32 gradients dnnl_sgemm, bf16 input gradients brg (gemm would need a float
// copy of its result as scratch), bf16 weight gradients gemm. oneDNN offers brg first if the processor has AVX-512;
// otherwise everything is gemm. dnnl_sgemm fails if a signal handler runs on its thread (llmc/run/control/interrupt.h).
// The rule is fixed, so that two runs with the same number of threads are bit-identical.
#include <omp.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <map>
#include <optional>
#include <type_traits>
#include <vector>

#include "kernels/bias_gradient.h"
#include "kernels/device/memory.h"
#include "kernels/gelu.h"
#include "kernels/matmul/algorithm_choice.h"
#include "kernels/matmul/check.h"
#include "kernels/matmul/onednn_library.h"
#include "kernels/matmul/onednn_plan.h"
#include "kernels/matmul/onednn_symmetric.h"
#include "kernels/matmul/onednn_widen.h"

namespace kernels {
namespace {

using namespace onednn;

// Native bf16 arithmetic is used unless widening is faster by more than noise. It took 0.42 of the time of widening
// with AVX-512's bf16 instructions on a Zen 5, 0.2 with a Xeon's AMX, and 2.0 times as long if it is emulated. Close to
// the limit: that Xeon's bf16 instructions without AMX, 1.2 to 1.3.
constexpr double kClearlyFaster = 1.2;

// As stored and as printed.
constexpr const char *kNative = "multiplied natively", *kWidened = "widened to fp32";

// CPU time of this thread, which excludes other programs.
double thread_seconds() {
    timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return time.tv_sec + 1e-9 * time.tv_nsec;
}

class OneThread {
public:
    OneThread() { omp_set_num_threads(1); }
    ~OneThread() { omp_set_num_threads(before_); }

private:
    int before_ = omp_get_max_threads();
};

}  // namespace

struct Matmul::State {
    struct Bf16Choice {
        bool native;
        std::string reason;
    };

    MatmulSettings settings;
    dnnl::engine engine{dnnl::engine::kind::cpu, 0};
    dnnl::stream stream{engine};
    std::map<Shape, Plan> plans;
    std::map<ScaledShape, Plan> scaled_plans;
    device::Workspace workspace;
    std::optional<Bf16Choice> bf16_choice;  // made by the first bf16 product

    template <class Key> Plan& plan_for(const Key& shape, std::map<Key, Plan>& known) {
        const auto found = known.find(shape);
        return found != known.end() ? found->second : known.emplace(shape, make_plan(shape, engine)).first->second;
    }

    // oneDNN takes inputs as pointers to non-const.
    void execute(Plan& plan, const void* source, const void* weights, void* result) {
        plan.source.set_data_handle(const_cast<void*>(source));
        plan.weights.set_data_handle(const_cast<void*>(weights));
        plan.result.set_data_handle(result);
        plan.scratch.set_data_handle(workspace.at_least(plan.scratch_bytes));
        plan.primitive.execute(stream, plan.arguments);
        stream.wait();
    }
    // False: in bf16 oneDNN would compute it with plain loops, and nothing was done.
    bool run(const Shape& shape, const void* source, const void* weights, const void* bias, void* result) {
        try {
            Plan& plan = plan_for(shape, plans);
            if (shape.dtype == DType::bf16 && !plan.has_kernel) return false;
            if (shape.biased) plan.bias.set_data_handle(const_cast<void*>(bias));
            execute(plan, source, weights, result);
            return true;
        } catch (const dnnl::error& error) {
            fail_in_library(shape.call(), error.message, error.status);
        }
    }

    template <class T> bool widens() {
        if constexpr (dtype_of<T> == DType::fp32) return false;
        else {
            if (!bf16_choice) bf16_choice = choose_bf16();
            return !bf16_choice->native;
        }
    }

    template <class T> void multiply(const LinearForward<T>& op, std::span<T> out, bool widen) {
        multiply({Product::forward, dtype_of<T>, op.rows, op.in_channels, op.out_channels, !op.bias.empty(), false,
                  omp_get_max_threads()},
                 op.in.data(), op.weight.data(), op.bias.data(), out.data(), widen);
    }
    template <class T> void multiply(const LinearBackwardInput<T>& op, bool widen) {
        multiply<T>({Product::backward_input, dtype_of<T>, op.rows, op.in_channels, op.out_channels, false, false,
                     omp_get_max_threads()},
                    op.dout.data(), op.weight.data(), nullptr, op.din.data(), widen);
    }
    template <class T> void multiply(const LinearBackwardWeight<T>& op, bool widen) {
        multiply<T>({Product::backward_weight, dtype_of<T>, op.rows, op.in_channels, op.out_channels, false,
                     op.accumulate, omp_get_max_threads()},
                    op.dout.data(), op.in.data(), nullptr, op.dweight.data(), widen);
    }

    // A product of a linear layer: result (+)= left right + bias
    template <class T, class Result>
    void multiply(const Shape& shape, const T* left, const T* right, const T* bias, Result* result, bool widen) {
        const Gemm gemm = shape.gemm();
        dnnl_status_t status = dnnl_success;
        if constexpr (dtype_of<T> == DType::bf16) {
            if (!widen && run(shape, left, right, bias, result)) return;
            widened::Product<T, T> op{.rows = gemm.m, .columns = gemm.n, .inner = gemm.k,
                                .left = {left, gemm.left_stride(), gemm.left_transposed},
                                .right = {right, gemm.right_stride(), gemm.right_transposed},
                                .bias = shape.biased ? bias : nullptr, .accumulate = shape.accumulate};
            if constexpr (std::is_same_v<Result, float>) op.out_float = result;
            else op.out = result;
            status = widened::multiply(
                op, reinterpret_cast<float*>(workspace.at_least(widened::kScratchFloats * sizeof(float))));
        } else {
            if (shape.product == Product::forward) {
                run(shape, left, right, bias, result);
                return;
            }
            status = dnnl_sgemm(gemm.left_transposed ? 'T' : 'N', gemm.right_transposed ? 'T' : 'N', gemm.m, gemm.n,
                                gemm.k, 1.0f, left, gemm.left_stride(), right, gemm.right_stride(),
                                shape.accumulate ? 1.0f : 0.0f, result, gemm.n);
        }
        if (status != dnnl_success) fail_in_library("sgemm for " + shape.call(), "failed", status);
    }

    template <class T> void multiply(const ScaledProduct<T>& op) {
        add_before(op);
        multiply(op, {0, op.m, op.n});
    }
    template <class T> void multiply(const SymmetricProduct<T>& op) {
        const ScaledProduct<T> whole = op.whole();
        add_before(whole);
        const int rows = symmetric::rows_of_a_block(op.m);
        for (int first = 0; first < op.m; first += rows) {
            const int end = std::min(first + rows, op.m);
            multiply(whole, {first, end - first, end});
        }
        if (rows < op.m) symmetric::mirror(op);
    }

    // A library adds to its result.
    template <class T> void add_before(const ScaledProduct<T>& op) {
        if (op.beta != 0 && !widens<T>() && op.addend.data() != op.out.data())
            std::copy_n(op.addend.begin(), std::size_t(op.m) * std::size_t(op.n) * std::size_t(op.batch),
                        op.out.begin());
    }
    template <class T> void multiply(const ScaledProduct<T>& op, const Part& part) {
        const std::int64_t m = op.m, n = op.n, k = op.k;
        const T* const left = op.left.data() + part.first_row * (op.left_transposed ? 1 : k);
        T* const out = op.out.data() + part.first_row * n;
        if constexpr (dtype_of<T> == DType::bf16) {
            if (widens<T>()) return multiply_widened(op, part);
            const ScaledShape shape{op.m, op.n, op.k, op.batch, part, op.left_transposed, op.right_transposed,
                                    op.alpha, op.beta, omp_get_max_threads()};
            try {
                Plan& plan = plan_for(shape, scaled_plans);
                if (!plan.has_kernel) return multiply_widened(op, part);
                execute(plan, left, op.right.data(), out);
            } catch (const dnnl::error& error) {
                fail_in_library("a scaled product", described(op), error.status);
            }
        } else {
            for (int i = 0; i < op.batch; ++i) {
                const dnnl_status_t status = dnnl_sgemm(
                    op.left_transposed ? 'T' : 'N', op.right_transposed ? 'T' : 'N', part.rows, part.columns, k,
                    op.alpha, left + i * m * k, op.left_transposed ? m : k, op.right.data() + i * k * n,
                    op.right_transposed ? k : n, op.beta, out + i * m * n, n);
                if (status != dnnl_success) fail_in_library("sgemm", described(op), status);
            }
        }
    }
    void multiply_widened(const ScaledProduct<bf16>& op, const Part& part) {
        const std::int64_t m = op.m, n = op.n, k = op.k, columns = part.columns, first = part.first_row * n;
        const auto scratch = reinterpret_cast<float*>(workspace.at_least(
            (widened::kScratchFloats + std::size_t(part.rows) * std::size_t(columns)) * sizeof(float)));
        float* const sums = scratch + widened::kScratchFloats;
        for (int i = 0; i < op.batch; ++i) {
            const dnnl_status_t status = widened::multiply<bf16, bf16>(
                {.rows = part.rows, .columns = columns, .inner = k,
                 .left = {op.left.data() + i * m * k + part.first_row * (op.left_transposed ? 1 : k),
                          op.left_transposed ? m : k, op.left_transposed},
                 .right = {op.right.data() + i * k * n, op.right_transposed ? k : n, op.right_transposed},
                 .out_float = sums}, scratch);
            if (status != dnnl_success) fail_in_library("sgemm", described(op), status);
            bf16* const out = op.out.data() + i * m * n + first;
            const bf16* const addend = op.beta != 0 ? op.addend.data() + i * m * n + first : nullptr;
#pragma omp parallel for
            for (std::int64_t row = 0; row < part.rows; ++row)
                for (std::int64_t j = 0; j < columns; ++j)
                    out[row * n + j] = bf16_from_float(op.alpha * sums[row * columns + j] +
                                                       (addend ? op.beta * bf16_to_float(addend[row * n + j]) : 0.0f));
        }
    }
    template <class T> static std::string described(const ScaledProduct<T>& op) {
        return std::to_string(op.batch) + " of " + std::to_string(op.m) + " x " + std::to_string(op.k) + " x " +
               std::to_string(op.n);
    }

    // The stored choice for this processor and library; otherwise times both if that is allowed.
    Bf16Choice choose_bf16() {
        if (settings.bf16 == Bf16Arithmetic::widen) return {false, "widened to fp32 as requested"};
        constexpr int kRows = 256, kChannels = 768;
        try {
            plan_for({Product::forward, DType::bf16, kRows, kChannels, kChannels, false, false, omp_get_max_threads()},
                     plans);
        } catch (const dnnl::error&) {
            return {false, "widened to fp32, because oneDNN has no bf16 products for this processor"};
        }
        if (settings.bf16 == Bf16Arithmetic::native) return {true, "multiplied natively as requested"};
        TunedAlgorithms* const tuned = settings.tuned;
        const std::string problem = "arithmetic of bf16 products";
        if (const TunedAlgorithm* known = tuned ? tuned->find(library_name(), problem) : nullptr) {
            if (known->taken == kNative || known->taken == kWidened)
                return {known->taken == kNative, known->taken + " (" + known->why + ")"};
            tuned->reject(library_name(), problem);
        }
        if (tuned && !tuned->timing) {
            const bool has_bf16 = uses(dnnl_cpu_isa_avx512_core_bf16);
            return {has_bf16, std::string(has_bf16 ? kNative : kWidened) + " (by instruction set, not timed)"};
        }
        const auto [native, widened] = seconds_of_bf16(kRows, kChannels);
        const bool keep_native = widened * kClearlyFaster > native;
        const double flops = 2.0 * kRows * kChannels * kChannels;
        char times[80];
        std::snprintf(times, sizeof times, "one thread: %.0f GFLOP/s natively, %.0f widened", 1e-9 * flops / native,
                      1e-9 * flops / widened);
        const TunedAlgorithm choice{keep_native ? kNative : kWidened, times, keep_native ? native : widened};
        if (tuned) tuned->keep(library_name(), problem, choice);
        return {keep_native, choice.taken + " (" + choice.why + ")"};
    }

    // Times a product of medium size both ways, on one thread, so that a busy machine does not change the choice and
    // therefore the bits: 10-40 ms.
    std::pair<double, double> seconds_of_bf16(int rows, int channels) {
        constexpr int kRepetitions = 3;
        const std::vector<bf16> in(std::size_t(rows) * channels, bf16_from_float(0.5f));
        const std::vector<bf16> weight(std::size_t(channels) * channels, bf16_from_float(0.25f));
        std::vector<bf16> out(in.size());
        const LinearForward<bf16> probe{out, {}, in, weight, {}, rows, channels, channels};
        const OneThread one_thread;
        double native = 1e30, widened = 1e30;
        for (int i = 0; i <= kRepetitions; ++i) {  // the first is a warm-up
            const double start = thread_seconds();
            multiply(probe, probe.out, false);
            const double middle = thread_seconds();
            multiply(probe, probe.out, true);
            if (i == 0) continue;
            native = std::min(native, middle - start);
            widened = std::min(widened, thread_seconds() - middle);
        }
        return {native, widened};
    }
};

Matmul::Matmul(const MatmulSettings& settings) try : state_(new State{settings}) {
} catch (const dnnl::error& error) {
    fail_in_library("an engine for the CPU", error.message, error.status);
}
Matmul::~Matmul() = default;
Matmul::Matmul(Matmul&&) noexcept = default;
Matmul& Matmul::operator=(Matmul&&) noexcept = default;

// GELU follows the whole product: alternating both in chunks of 64 to 512 rows, so that GELU finds its input in the
// cache, was never faster (768 -> 3072, 2048 rows, one thread, fp32: 45.2 ms whole, 45.8 in chunks of 512, 48.6 of 128;
// bf16 24.4, 24.3, 26.6).
template <class T>
void Matmul::forward(const LinearForward<T>& op, StreamRef stream) {
    matmul_check::check(op);
    const bool widen = state_->widens<T>();
    if (op.pre.empty()) return state_->multiply(op, op.out, widen);
    state_->multiply(op, op.pre, widen);
    const std::size_t elements = std::size_t(op.rows) * op.out_channels;
    gelu_forward<T>({op.out.first(elements), op.pre.first(elements)}, stream);
}

// oneDNN adds a residual only in a result that has it already: a copy would cost what the addition saves.
template <class T>
void Matmul::forward_layernorm(const LinearLayerNormForward<T>& op, StreamRef stream) {
    matmul_check::check(op);
    forward(op.linear, stream);
    residual_layernorm_forward(op.norm, stream);
}

template <class T>
void Matmul::backward_input(const LinearBackwardInput<T>& op, StreamRef stream) {
    matmul_check::check(op);
    state_->multiply(op, state_->widens<T>());
    const std::size_t elements = std::size_t(op.rows) * op.in_channels;
    if (!op.pre.empty())
        gelu_backward<T>({op.din.first(elements), op.din.first(elements), op.pre.first(elements)}, stream);
    if (op.dbias.empty()) return;
    const std::size_t floats = bias_gradient_scratch(op.in_channels);
    auto* const scratch = reinterpret_cast<float*>(state_->workspace.at_least(floats * sizeof(float)));
    bias_gradient<T>({op.dbias, {scratch, floats}, op.din, op.rows, op.in_channels, op.accumulate}, stream);
}

template <class T>
void Matmul::backward_weight(const LinearBackwardWeight<T>& op, StreamRef) {
    matmul_check::check(op);
    state_->multiply(op, state_->widens<T>());
}

template <class T>
void Matmul::multiply(const ScaledProduct<T>& op, StreamRef) {
    matmul_check::check(op);
    state_->multiply(op);
}

template <class T>
void Matmul::multiply(const SymmetricProduct<T>& op, StreamRef) {
    matmul_check::check(op);
    state_->multiply(op);
}

// Always widened: for runs that are compared with a GPU's, not for speed.
template <class Left, class Out>
void Matmul::multiply(const Fp8Product<Left, Out>& op, StreamRef) {
    matmul_check::check(op);
    const auto value = [](std::span<const float> factor) { return factor.empty() ? 1.0f : factor[0]; };
    widened::Product<Left, e4m3> product{.rows = op.m, .columns = op.n, .inner = op.k,
                                         .left = {op.left.data(), op.k, false},
                                         .right = {op.right.data(), op.k, true}, .accumulate = op.accumulate,
                                         .factor = op.factor * value(op.left_factor) * value(op.right_factor)};
    if constexpr (std::is_same_v<Out, float>) product.out_float = op.out.data();
    else product.out = op.out.data();
    const dnnl_status_t status = widened::multiply(
        product, reinterpret_cast<float*>(state_->workspace.at_least(widened::kScratchFloats * sizeof(float))));
    if (status != dnnl_success) fail_in_library("sgemm", "an fp8 product", status);
}

bool Matmul::chooses_by_shape() { return false; }
void Matmul::replan() {}

std::size_t Matmul::workspace_bytes() const { return state_->workspace.bytes(); }

std::string Matmul::library() const { return library_name(); }

std::string Matmul::describe(DType dtype) {
    if (dtype == DType::fp32) return library();
    state_->widens<bf16>();  // determines bf16_choice if it has not been yet
    return library() + "; bf16 " + state_->bf16_choice->reason;
}

}  // namespace kernels

#include "kernels/matmul/instances.h"
