// matmul.h - the matrix products of a linear layer, and general ones, by the vendor's library: cuBLASLt on a GPU,
// oneDNN on a CPU
//
//   forward:          out = in weight^T + bias;   with GELU: pre = in weight^T + bias, out = gelu(pre)
//                     with LayerNorm: residual = left + in weight^T + bias, normed = LayerNorm(residual)
//   backward, input:  din = dout weight;          with GELU: din = (dout weight) * gelu'(pre)
//                     dbias (+)= sum over rows of din
//   backward, weight: dweight (+)= dout^T in
//   8-bit floats:     out (+)= factor left right^T
//
// Shapes    in, din: (rows, in_channels) T; out, pre, dout: (rows, out_channels) T; weight: (out_channels, in_channels)
//           T; bias: (out_channels) T; dweight: (out_channels, in_channels) float; dbias: (in_channels) float. All
//           row-major.
// Biases    of a block: backward_input of the MLP's projection sums the gradient of fc's; in the form fused-gelu-bias
//           the sums of each call are rounded to T. The others: llmc/README.md.
// Signals   on a CPU no signal handler may run on a thread that multiplies (llmc/run/control/interrupt.h).
// Residual  the library adds `left` in the product's epilogue, which rounds the sum once, or kernels/layernorm.h adds
//           the rounded product: autotuning decides, and without it the latter. oneDNN has only the latter.
// Numerics  products accumulate in float. bf16 on a CPU without fast bf16 instructions is widened and multiplied in
//           float (Bf16Arithmetic).
// Tuning    with settings.tuned algorithms are autotuned, and stored ones are used again (kernels/tuning).
// Work      2 * rows * in_channels * out_channels flops each.
#pragma once
#include <memory>
#include <string>

#include "kernels/device/types.h"
#include "kernels/layernorm.h"

namespace kernels {

template <class T>
struct LinearForward {
    std::span<T> out;
    std::span<T> pre;         // empty: no GELU
    std::span<const T> in, weight;
    std::span<const T> bias;  // empty: no bias
    int rows, in_channels, out_channels;
};

// A linear layer, the addition of its result to the residual stream, and the LayerNorm after it.
template <class T>
struct LinearLayerNormForward {
    LinearForward<T> linear;           // without GELU; `out` is scratch
    ResidualLayerNormForward<T> norm;  // of its rows; `right` is linear.out
};

template <class T>
struct LinearBackwardInput {
    std::span<T> din;
    std::span<const T> dout, weight;
    std::span<const T> pre;   // (rows, in_channels): the input is gelu(pre). Empty: no GELU
    int rows, in_channels, out_channels;
    std::span<float> dbias{};  // of the layer that computed pre or the input. Empty: none
    bool accumulate = false;   // false: dbias is overwritten, true: added to
};

template <class T>
struct LinearBackwardWeight {
    std::span<float> dweight;
    std::span<const T> dout, in;
    int rows, in_channels, out_channels;
    bool accumulate;          // false: dweight is overwritten, true: added to
};

// out = alpha left right + beta addend, for `batch` products of the same shape, whose matrices follow each other.
template <class T>
struct ScaledProduct {
    std::span<T> out;             // (batch, m, n)
    std::span<const T> left;      // (batch, m, k), or if transposed (batch, k, m)
    std::span<const T> right;     // (batch, k, n), or if transposed (batch, n, k)
    std::span<const T> addend{};  // (batch, m, n), or `out` itself; empty if beta is 0. Neither factor may be `out`
    int m, n, k, batch = 1;
    bool left_transposed = false, right_transposed = false;
    float alpha = 1, beta = 0;
};

// out = alpha x x^T + beta addend, or if transposed alpha x^T x + beta addend, with a symmetric addend. On a CPU only
// the lower triangle of a large product is computed, and mirrored: then `out` is exactly symmetric. On an H200
// cuBLASLt's whole product was 2.4 to 3 times faster than a kernel for half of it (dev/results/2026-11-27-h200.md).
template <class T>
struct SymmetricProduct {
    std::span<T> out;             // (batch, m, m)
    std::span<const T> x;         // (batch, m, k), or if transposed (batch, k, m)
    std::span<const T> addend{};  // (batch, m, m); empty if beta is 0. Neither input may be `out`
    int m, k, batch = 1;
    bool transposed = false;
    float alpha = 1, beta = 0;

    ScaledProduct<T> whole() const {
        return {.out = out, .left = x, .right = x, .addend = addend, .m = m, .n = m, .k = k, .batch = batch,
                .left_transposed = transposed, .right_transposed = !transposed, .alpha = alpha, .beta = beta};
    }
};

// out (+)= factor left_factor right_factor left right^T. The factors in device memory undo the scales of the two
// (kernels/fp8.h). For <e4m3, bf16>, a forward product, a GPU may keep partial sums in fewer bits than a float; the
// others, of gradients, are <e5m2, bf16> and <e5m2, float>.
template <class Left, class Out>
struct Fp8Product {
    std::span<Out> out;                                // (m, n)
    std::span<const Left> left;                        // (m, k)
    std::span<const e4m3> right;                       // (n, k)
    std::span<const float> left_factor, right_factor;  // one number each; empty: 1
    int m, n, k;
    float factor = 1;
    bool accumulate = false;  // false: out is overwritten, true: added to, a float only
};

// How bf16 tensors are multiplied on a CPU: by bf16 instructions, or widened to float in tiles that stay in the cache.
enum class Bf16Arithmetic { measure, native, widen };

class TunedAlgorithms;

struct MatmulSettings {
    bool tf32 = false;                               // GPUs: fp32 products on tensor cores with 10-bit mantissas
    Bf16Arithmetic bf16 = Bf16Arithmetic::measure;   // CPUs: `measure` times both once
    TunedAlgorithms* tuned = nullptr;  // outlives this; nullptr: the library's first algorithm, bf16 as measured here
};

// Owns the library's handles, its workspace and the plans, one per shape. Not thread-safe.
class Matmul {
public:
    explicit Matmul(const MatmulSettings& settings = {});
    ~Matmul();
    Matmul(Matmul&&) noexcept;
    Matmul& operator=(Matmul&&) noexcept;

    // All enqueue on `stream`; outputs are ready when the stream has passed this point. All throw Error if a span is
    // too short or a channel count is not a multiple of 16 / sizeof(T), and a run-time Error with the library's status
    // if the library fails.
    template <class T> void forward(const LinearForward<T>& op, StreamRef stream);
    template <class T> void forward_layernorm(const LinearLayerNormForward<T>& op, StreamRef stream);
    template <class T> void backward_input(const LinearBackwardInput<T>& op, StreamRef stream);
    template <class T> void backward_weight(const LinearBackwardWeight<T>& op, StreamRef stream);
    // The sum over k is in float and rounded to T once, after the addition. m, n and k must be multiples of
    // 16 / sizeof(T). Not autotuned.
    template <class T> void multiply(const ScaledProduct<T>& op, StreamRef stream);
    template <class T> void multiply(const SymmetricProduct<T>& op, StreamRef stream);
    // n and k must be multiples of 16. On a GPU it needs compute capability 8.9.
    template <class Left, class Out> void multiply(const Fp8Product<Left, Out>& op, StreamRef stream);

    // Whether there are several algorithms per shape, so that products should be timed before a run.
    static bool chooses_by_shape();
    // Chooses the algorithms of all shapes again: those of before were not timed.
    void replan();
    // With its version, the key of stored algorithms, such as "cuBLASLt 13.1.2".
    std::string library() const;

    // Device bytes of the library's workspace, for the memory plan.
    std::size_t workspace_bytes() const;
    // For the log of a run in `dtype`: library, version, instruction set, and how bf16 is multiplied, which is
    // determined now if it has not been yet.
    std::string describe(DType dtype);

    struct State;

private:
    std::unique_ptr<State> state_;
};

}  // namespace kernels
