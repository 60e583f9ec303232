// matmul.h - the matrix products of a linear layer, by the vendor's library: cuBLASLt on a GPU, oneDNN on a CPU
//
//   forward:          out = in weight^T + bias;   with GELU: pre = in weight^T + bias, out = gelu(pre)
//   backward, input:  din = dout weight;          with GELU: din = (dout weight) * gelu'(pre),
//                                                 dbias (+)= sum over rows of din, of the bias of the layer before
//   backward, weight: dweight (+)= dout^T in,  dbias (+)= sum over rows of dout
//
// Shapes    in, din: (rows, in_channels) T; out, pre, dout: (rows, out_channels) T; weight: (out_channels, in_channels)
//           T; bias: (out_channels) T; dweight: (out_channels, in_channels) float; dbias: (out_channels) float. All
//           row-major.
// Signals   on a CPU no signal handler may run on a thread that multiplies (llmc/run/control/interrupt.h).
// Numerics  products accumulate in float. bf16 on a CPU without fast bf16 instructions is widened and multiplied in
//           float (Bf16Arithmetic). The sums of backward_input's dbias may be rounded to T before they are added: the
//           library that sums them as it multiplies gives them in the type of its result (rounds_bias_gradient).
// Choices   where options.choices is given: algorithms by time, the same again once they are kept (kernels/tuning).
// Work      2 * rows * in_channels * out_channels flops each.
#pragma once
#include <compare>
#include <memory>
#include <string>

#include "kernels/device/types.h"

namespace kernels {

template <class T>
struct LinearForward {
    std::span<T> out;
    std::span<T> pre;         // empty: no GELU
    std::span<const T> in, weight;
    std::span<const T> bias;  // empty: no bias
    int rows, in_channels, out_channels;
};

template <class T>
struct LinearBackwardInput {
    std::span<T> din;
    std::span<const T> dout, weight;
    std::span<const T> pre;   // (rows, in_channels): the input was gelu(pre). Empty: it was not
    int rows, in_channels, out_channels;
    std::span<float> dbias{};       // (in_channels): of the bias within pre. Empty: summed elsewhere
    bool accumulate_dbias = false;  // false: overwritten, true: added to
};

template <class T>
struct LinearBackwardWeight {
    std::span<float> dweight;
    std::span<float> dbias;   // empty: no bias
    std::span<const T> dout, in;
    int rows, in_channels, out_channels;
    bool accumulate;          // false: the gradients are overwritten, true: added to
};

// How bf16 tensors are multiplied on a CPU: by bf16 instructions, or widened to float in tiles that stay in the cache.
enum class Bf16Arithmetic { measure, native, widen };

class Choices;

struct MatmulOptions {
    bool tf32 = false;                               // GPUs: fp32 products on tensor cores with 10-bit mantissas
    Bf16Arithmetic bf16 = Bf16Arithmetic::measure;   // CPUs: `measure` times both once
    Choices* choices = nullptr;  // outlives this; nullptr: the library's first algorithm, and bf16 as measured here
};

// Two layers with GELU between them: pre = in weight1^T + bias, out = gelu(pre) weight2^T.
struct GeluPair {
    int rows, in_channels, hidden_channels, out_channels;
    bool accumulate;  // the gradients of weight1 and bias
    auto operator<=>(const GeluPair&) const = default;
};

// One linear layer, when its gradients are computed.
struct LinearShape {
    int rows, in_channels, out_channels;
    bool accumulate;
    auto operator<=>(const LinearShape&) const = default;
};

// Owns the library's handles, its workspace and the plans it has made, one per shape. Not for two threads at once.
class Matmul {
public:
    explicit Matmul(const MatmulOptions& options = {});
    ~Matmul();
    Matmul(Matmul&&) noexcept;
    Matmul& operator=(Matmul&&) noexcept;

    // All enqueue on `stream`; outputs are ready when the stream has passed this point. All throw Error if a span is
    // too short or a channel count is not a multiple of 16 / sizeof(T), and a run-time Error that names the library's
    // status when the library refuses.
    template <class T> void forward(const LinearForward<T>& op, StreamRef stream);
    template <class T> void backward_input(const LinearBackwardInput<T>& op, StreamRef stream);
    template <class T> void backward_weight(const LinearBackwardWeight<T>& op, StreamRef stream);

    // Whether the gradient of the bias of a pair is better summed with backward_input of the second layer than with
    // backward_weight of the first: by the times of all four products, where they are known; else it is not.
    bool sums_bias_with_input(DType dtype, const GeluPair& pair) const;
    // Whether sums_bias_with_input() holds and the algorithm chosen for that product rounds the sums to T.
    bool rounds_bias_gradient(DType dtype, const GeluPair& pair) const;
    // Of a layer whose bias' gradient is at hand elsewhere: whether backward_weight should sum it all the same, because
    // it is faster with it, by the times of both products; where they are not known it should not.
    bool sums_bias_with_weight(DType dtype, const LinearShape& layer) const;
    // Whether algorithms are chosen for each shape, so that products are worth timing before a run.
    static bool chooses_by_shape();
    // With its version, as choices are kept under it, such as "cuBLASLt 13.1.2".
    std::string library() const;

    // Device bytes held for the library's own use, for the memory plan.
    std::size_t workspace_bytes() const;
    // For the log of a run in `dtype`: library, version, instruction set, and how bf16 is multiplied, which is decided
    // now if it has not been yet.
    std::string describe(DType dtype);

    struct State;

private:
    std::unique_ptr<State> state_;
};

}  // namespace kernels
