// matmul.h - the matrix products of a linear layer, by the vendor's library: cuBLASLt on a GPU, oneDNN on a CPU
//
//   forward:          out = in weight^T + bias;   with GELU: pre = in weight^T + bias, out = gelu(pre)
//   backward, input:  din = dout weight;          with GELU: din = (dout weight) * gelu'(pre)
//   backward, weight: dweight (+)= dout^T in,  dbias (+)= sum over rows of dout
//
// Shapes    in, din: (rows, in_channels) T; out, pre, dout: (rows, out_channels) T; weight: (out_channels, in_channels)
//           T; bias: (out_channels) T; dweight: (out_channels, in_channels) float; dbias: (out_channels) float. All
//           row-major.
// Signals   on a CPU no signal handler may run on a thread that multiplies (llmc/run/interrupt.h).
// Numerics  products accumulate in float. bf16 on a CPU without fast bf16 instructions is widened and multiplied in
//           float (Bf16Arithmetic).
// Work      2 * rows * in_channels * out_channels flops each.
#pragma once
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

struct MatmulOptions {
    bool tf32 = false;                               // GPUs: fp32 products on tensor cores with 10-bit mantissas
    Bf16Arithmetic bf16 = Bf16Arithmetic::measure;   // CPUs: `measure` times both once
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
