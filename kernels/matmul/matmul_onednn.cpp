// matmul_onednn.cpp - matmul.h on a CPU
//
// oneDNN 2.6 holds two families of GEMM: "brg" (batch-reduce kernels, which copy a factor into panels as they go) and
// "gemm" (the older packed driver, which is also what dnnl_sgemm calls). Measured on 2 cores of Zen 5 (AVX-512 BF16),
// GFLOP/s at 256 rows and channels 768 -> 3072, 3072 -> 768 and 768 -> 50304:
//
//                             fp32 brg        fp32 gemm       bf16 brg        bf16 gemm
//   forward                   481 487 465     400 302 402     949 953 933     856 871 756
//   backward, input           412 434 344     489 450 493     887 890 845     884 875 893
//   backward, weight          507 438 494     468 488 472     963 949 892     928 1001 956
//   backward, weight, added   386 388 384     476 474 478     637 608 604     749 879 -
//
// Weights reordered to oneDNN's own layout before each product (they change every step) lost everywhere: the reordering
// takes 15-30 % of the product.
// So: forward by brg with the bias fused, fp32 gradients by dnnl_sgemm, bf16 input gradients by brg (gemm would need a
// float copy of its result as scratch), bf16 weight gradients by gemm. brg is what oneDNN offers first where the
// processor has AVX-512; elsewhere all of it is gemm. dnnl_sgemm does not survive a signal handler on its thread
// (llmc/run/interrupt.h). The rule is fixed, so that two runs with the same number of threads give the same bits.
#include <omp.h>

#include <algorithm>
#include <compare>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <map>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <oneapi/dnnl/dnnl.hpp>
#include <oneapi/dnnl/dnnl_debug.h>

#include "kernels/bias_gradient.h"
#include "kernels/device/memory.h"
#include "kernels/gelu.h"
#include "kernels/matmul/check.h"
#include "kernels/matmul/onednn_widen.h"

namespace kernels {
namespace {

using dnnl::memory;

// Native bf16 arithmetic stays unless widening is faster by more than noise explains. It took 0.42 of the time of
// widening with AVX-512's bf16 instructions on a Zen 5, 0.2 with a Xeon's AMX, and 2.0 times as long where it is
// emulated. Near the limit are that Xeon's bf16 instructions without AMX: 1.2 to 1.3.
constexpr double kClearlyFaster = 1.2;

enum class Product { forward, backward_input, backward_weight };

std::string dimensions(int rows, int in_channels, int out_channels) {
    return "rows " + std::to_string(rows) + ", in_channels " + std::to_string(in_channels) + ", out_channels " +
           std::to_string(out_channels);
}

const char* name_of(Product product) {
    return product == Product::forward          ? "forward"
           : product == Product::backward_input ? "backward_input"
                                                : "backward_weight";
}

[[noreturn]] void fail_in_library(const std::string& call, const std::string& what, dnnl_status_t status) {
    throw Error("oneDNN refused " + call + ": " + what + " (" + dnnl_status2str(status) + ")", Blame::runtime);
}

// What one matmul primitive is made for. oneDNN cuts the work for a number of threads when it makes the primitive.
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

Plan make_plan(const Shape& shape, const dnnl::engine& engine) {
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
    const memory::desc bias({1, out}, type, Strides{out, 1});

    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    if (shape.accumulate) {
        dnnl::post_ops sum;
        sum.append_sum(1.0f);
        attributes.set_post_ops(sum);
    }
    // Named, because the iterator behind next_impl() keeps its address.
    const auto desc = shape.biased ? dnnl::matmul::desc(source, weights, bias, result)
                                   : dnnl::matmul::desc(source, weights, result);
    dnnl::matmul::primitive_desc found(desc, attributes, engine);
    if (shape.product == Product::backward_weight) {
        dnnl::matmul::primitive_desc other(desc, attributes, engine);
        do {
            if (std::string_view(other.impl_info_str()).starts_with("gemm")) {
                found = other;
                break;
            }
        } while (other.next_impl());
    }

    Plan plan;
    plan.primitive = dnnl::matmul(found);
    plan.source = memory(source, engine, nullptr);
    plan.weights = memory(weights, engine, nullptr);
    plan.result = memory(result, engine, nullptr);
    plan.scratch = memory(found.scratchpad_desc(), engine, nullptr);
    plan.scratch_bytes = found.scratchpad_desc().get_size();
    plan.arguments = {{DNNL_ARG_SRC, plan.source}, {DNNL_ARG_WEIGHTS, plan.weights}, {DNNL_ARG_DST, plan.result},
                      {DNNL_ARG_SCRATCHPAD, plan.scratch}};
    if (shape.biased) {
        plan.bias = memory(bias, engine, nullptr);
        plan.arguments.emplace(DNNL_ARG_BIAS, plan.bias);
    }
    return plan;
}

// Time that this thread itself has computed: other programs do not show in it.
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

// oneDNN takes inputs by addresses that are not const.
template <class T> void* address(std::span<const T> input) { return const_cast<T*>(input.data()); }
template <class T> void* address(std::span<T> output) { return output.data(); }

}  // namespace

struct Matmul::State {
    struct Bf16Choice {
        bool native;
        std::string reason;
    };

    MatmulOptions options;
    dnnl::engine engine{dnnl::engine::kind::cpu, 0};
    dnnl::stream stream{engine};
    std::map<Shape, Plan> plans;
    device::Workspace workspace;
    std::optional<Bf16Choice> bf16_choice;  // made when the first bf16 product comes

    Plan& plan_for(const Shape& shape) {
        const auto found = plans.find(shape);
        return found != plans.end() ? found->second : plans.emplace(shape, make_plan(shape, engine)).first->second;
    }

    void run(const Shape& shape, void* source, void* weights, void* bias, void* result) {
        try {
            Plan& plan = plan_for(shape);
            plan.source.set_data_handle(source);
            plan.weights.set_data_handle(weights);
            plan.result.set_data_handle(result);
            if (shape.biased) plan.bias.set_data_handle(bias);
            plan.scratch.set_data_handle(workspace.at_least(plan.scratch_bytes));
            plan.primitive.execute(stream, plan.arguments);
            stream.wait();
        } catch (const dnnl::error& error) {
            fail_in_library(shape.call(), error.message, error.status);
        }
    }

    void run_widened(Product product, const widened::Product& op) {
        const dnnl_status_t status = widened::multiply(
            op, reinterpret_cast<float*>(workspace.at_least(widened::kScratchFloats * sizeof(float))));
        if (status != dnnl_success)
            fail_in_library(
                std::string("sgemm for a widened ") + name_of(product),
                std::to_string(op.rows) + " x " + std::to_string(op.columns) + " x " + std::to_string(op.inner),
                status);
    }

    template <class T> bool widens() {
        if constexpr (dtype_of<T> == DType::fp32) return false;
        else {
            if (!bf16_choice) bf16_choice = choose_bf16();
            return !bf16_choice->native;
        }
    }

    // out = in weight^T + bias
    template <class T> void multiply(const LinearForward<T>& op, std::span<T> out, bool widen) {
        if constexpr (dtype_of<T> == DType::bf16) {
            if (widen)
                return run_widened(Product::forward, {.rows = op.rows,
                                                      .columns = op.out_channels,
                                                      .inner = op.in_channels,
                                                      .left = {op.in.data(), op.in_channels, false},
                                                      .right = {op.weight.data(), op.in_channels, true},
                                                      .out = out.data(),
                                                      .bias = op.bias.empty() ? nullptr : op.bias.data()});
        }
        run({Product::forward, dtype_of<T>, op.rows, op.in_channels, op.out_channels, !op.bias.empty(), false,
             omp_get_max_threads()},
            address(op.in), address(op.weight), address(op.bias), address(out));
    }

    // din = dout weight
    template <class T> void multiply(const LinearBackwardInput<T>& op, bool widen) {
        if constexpr (dtype_of<T> == DType::fp32) {
            return sgemm(Product::backward_input, op.rows, op.in_channels, op.out_channels, 'N', op.rows,
                         op.in_channels, op.out_channels, op.dout.data(), op.out_channels, op.weight.data(), 0.0f,
                         op.din.data());
        } else if (widen) {
            return run_widened(Product::backward_input, {.rows = op.rows, .columns = op.in_channels,
                                                         .inner = op.out_channels,
                                                         .left = {op.dout.data(), op.out_channels, false},
                                                         .right = {op.weight.data(), op.in_channels, false},
                                                         .out = op.din.data()});
        }
        run({Product::backward_input, dtype_of<T>, op.rows, op.in_channels, op.out_channels, false, false,
             omp_get_max_threads()},
            address(op.dout), address(op.weight), nullptr, address(op.din));
    }

    // dweight (+)= dout^T in
    template <class T> void multiply(const LinearBackwardWeight<T>& op, bool widen) {
        if constexpr (dtype_of<T> == DType::fp32) {
            return sgemm(Product::backward_weight, op.rows, op.in_channels, op.out_channels, 'T', op.out_channels,
                         op.in_channels, op.rows, op.dout.data(), op.out_channels, op.in.data(),
                         op.accumulate ? 1.0f : 0.0f, op.dweight.data());
        } else if (widen) {
            return run_widened(Product::backward_weight, {.rows = op.out_channels,
                                                          .columns = op.in_channels,
                                                          .inner = op.rows,
                                                          .left = {op.dout.data(), op.out_channels, true},
                                                          .right = {op.in.data(), op.in_channels, false},
                                                          .out_float = op.dweight.data(),
                                                          .accumulate = op.accumulate});
        }
        run({Product::backward_weight, dtype_of<T>, op.rows, op.in_channels, op.out_channels, false, op.accumulate,
             omp_get_max_threads()},
            address(op.dout), address(op.in), nullptr, address(op.dweight));
    }

    // result (m, n) = beta * result + left (m, k; stored transposed if 'T') * right (k, n), where n is in_channels
    void sgemm(Product product, int rows, int in_channels, int out_channels, char transposed, int m, int n, int k,
               const float* left, int left_stride, const float* right, float beta, float* result) {
        const dnnl_status_t status = dnnl_sgemm(transposed, 'N', m, n, k, 1.0f, left, left_stride, right, n, beta,
                                                result, n);
        if (status != dnnl_success)
            fail_in_library(std::string("sgemm for ") + name_of(product), dimensions(rows, in_channels, out_channels),
                            status);
    }

    // Times a product of middling size both ways on one thread, so that a busy machine does not change the choice and
    // with it the bits: 10-40 ms.
    Bf16Choice choose_bf16() {
        if (options.bf16 == Bf16Arithmetic::widen) return {false, "widened to fp32 as asked"};
        constexpr int kRows = 256, kChannels = 768, kRepetitions = 3;
        const std::vector<bf16> in(std::size_t(kRows) * kChannels, bf16_from_float(0.5f));
        const std::vector<bf16> weight(std::size_t(kChannels) * kChannels, bf16_from_float(0.25f));
        std::vector<bf16> out(in.size());
        const LinearForward<bf16> probe{out, {}, in, weight, {}, kRows, kChannels, kChannels};
        const OneThread one_thread;
        try {
            plan_for({Product::forward, DType::bf16, kRows, kChannels, kChannels, false, false, omp_get_max_threads()});
        } catch (const dnnl::error&) {
            return {false, "widened to fp32, because oneDNN has no bf16 products for this processor"};
        }
        if (options.bf16 == Bf16Arithmetic::native) return {true, "multiplied natively as asked"};

        double native = 1e30, widened = 1e30;
        for (int i = 0; i <= kRepetitions; ++i) {  // the first of each warms up
            const double start = thread_seconds();
            multiply(probe, probe.out, false);
            const double middle = thread_seconds();
            multiply(probe, probe.out, true);
            if (i == 0) continue;
            native = std::min(native, middle - start);
            widened = std::min(widened, thread_seconds() - middle);
        }
        const bool keep_native = widened * kClearlyFaster > native;
        char times[80];
        std::snprintf(times, sizeof times, " (one thread: %.0f GFLOP/s natively, %.0f widened)",
                      2e-9 * kRows * kChannels * kChannels / native, 2e-9 * kRows * kChannels * kChannels / widened);
        return {keep_native, std::string(keep_native ? "multiplied natively" : "widened to fp32") + times};
    }
};

Matmul::Matmul(const MatmulOptions& options) try : state_(new State{options}) {
} catch (const dnnl::error& error) {
    fail_in_library("an engine for the processor", error.message, error.status);
}
Matmul::~Matmul() = default;
Matmul::Matmul(Matmul&&) noexcept = default;
Matmul& Matmul::operator=(Matmul&&) noexcept = default;

// GELU follows the whole product: taking both in turns of 64 to 512 rows, so that GELU finds its input in the cache,
// was never faster (768 -> 3072, 2048 rows, one thread, fp32: 45.2 ms whole, 45.8 in turns of 512, 48.6 of 128; bf16
// 24.4, 24.3, 26.6).
template <class T>
void Matmul::forward(const LinearForward<T>& op, StreamRef stream) {
    matmul_check::check(op);
    const bool widen = state_->widens<T>();
    if (op.pre.empty()) return state_->multiply(op, op.out, widen);
    state_->multiply(op, op.pre, widen);
    const std::size_t elements = std::size_t(op.rows) * op.out_channels;
    gelu_forward<T>({op.out.first(elements), op.pre.first(elements)}, stream);
}

template <class T>
void Matmul::backward_input(const LinearBackwardInput<T>& op, StreamRef stream) {
    matmul_check::check(op);
    state_->multiply(op, state_->widens<T>());
    if (op.pre.empty()) return;
    const std::size_t elements = std::size_t(op.rows) * op.in_channels;
    gelu_backward<T>({op.din.first(elements), op.din.first(elements), op.pre.first(elements)}, stream);
}

template <class T>
void Matmul::backward_weight(const LinearBackwardWeight<T>& op, StreamRef stream) {
    matmul_check::check(op);
    state_->multiply(op, state_->widens<T>());
    if (op.dbias.empty()) return;
    const std::size_t floats = bias_gradient_scratch(op.out_channels);
    const std::span<float> scratch{reinterpret_cast<float*>(state_->workspace.at_least(floats * sizeof(float))),
                                   floats};
    bias_gradient<T>({op.dbias, scratch, op.dout, op.rows, op.out_channels, op.accumulate}, stream);
}

std::size_t Matmul::workspace_bytes() const { return state_->workspace.bytes(); }

std::string Matmul::describe(DType dtype) {
    const dnnl_version_t* version = dnnl_version();
    const char* isa = "instructions before AVX2";
    switch (dnnl_get_effective_cpu_isa()) {
        case dnnl_cpu_isa_avx2: isa = "AVX2"; break;
        case dnnl_cpu_isa_avx2_vnni: isa = "AVX2 VNNI"; break;
        case dnnl_cpu_isa_avx512_core: isa = "AVX-512"; break;
        case dnnl_cpu_isa_avx512_core_vnni: isa = "AVX-512 VNNI"; break;
        case dnnl_cpu_isa_avx512_core_bf16: isa = "AVX-512 BF16"; break;
        case dnnl_cpu_isa_avx512_core_amx: isa = "AMX"; break;
        default: break;
    }
    const std::string library = "oneDNN " + std::to_string(version->major) + "." + std::to_string(version->minor) +
                                "." + std::to_string(version->patch) + ", " + isa;
    if (dtype == DType::fp32) return library;
    state_->widens<bf16>();  // decides, if that is still to do
    return library + "; bf16 " + state_->bf16_choice->reason;
}

template void Matmul::forward(const LinearForward<float>&, StreamRef);
template void Matmul::forward(const LinearForward<bf16>&, StreamRef);
template void Matmul::backward_input(const LinearBackwardInput<float>&, StreamRef);
template void Matmul::backward_input(const LinearBackwardInput<bf16>&, StreamRef);
template void Matmul::backward_weight(const LinearBackwardWeight<float>&, StreamRef);
template void Matmul::backward_weight(const LinearBackwardWeight<bf16>&, StreamRef);

}  // namespace kernels
