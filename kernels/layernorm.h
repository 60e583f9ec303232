// layernorm.h - layer normalisation, alone and fused with the residual addition before it, and its gradient
//
//   residual = left + right                                   (fused form; `residual` is an input of the plain form)
//   normed   = (residual - mean) * rstd * weight + bias,      mean = avg(residual)
//   rstd     = 1 / sqrt(var(residual) + 1e-5)
//   with n = (residual - mean) * rstd and g = weight * dnormed:
//   dresidual (+)= (g - avg(g) - n * avg(g * n)) * rstd
//   dweight   (+)= sum over rows of dnormed * n,              dbias (+)= sum over rows of dnormed
//   dresidual_sum (+)= sum over rows of dresidual as stored: the bias gradient of a linear layer whose output enters
//                  the residual addition, without reading dresidual again
//
// Shapes    left, right, residual, normed and their gradients: (rows, channels) T; weight, bias: (channels) T; dweight,
//           dbias, dresidual_sum: (channels) float; mean, rstd: (rows) float.
// Numerics  sums in float, in a fixed order, without atomics; the variance is computed from differences to the mean, so
//           a constant offset in the thousands is harmless. The fused and the plain form are bit-identical for the same
//           residual. On a GPU the order of the additions over rows depends on the number of multiprocessors.
// Traffic   forward 2 (plain) or 4 (fused) * rows * channels * sizeof(T) bytes; backward 3, or 4 when accumulating into
//           dresidual: every tensor is read or written once. A GPU holds a row in registers up to 12288 channels in
//           bf16 and 6144 in fp32, backward 8192 and 4096; wider rows are read again for each sum.
// Scratch   of the backward pass, written once and read once: 3 * channels floats per block. A CPU has at most 256
//           blocks. A GPU has per multiprocessor three blocks in bf16 up to 768 channels (3.6 MB on 132); otherwise
//           two; but 16 / (warps per row) where a row takes a block. L2 should hold the scratch: not measured, like
//           all GPU times.
// Source    Ba, Kiros, Hinton 2016, arXiv 1607.06450.
#pragma once
#include "kernels/device/types.h"

namespace kernels {

template <class T>
struct LayerNormForward {
    std::span<T> normed;
    std::span<float> mean, rstd;  // saved for the backward pass
    std::span<const T> residual;
    std::span<const T> weight, bias;
    int rows, channels;
};

template <class T>
struct ResidualLayerNormForward {
    std::span<T> residual, normed;
    std::span<float> mean, rstd;
    std::span<const T> left, right;
    std::span<const T> weight, bias;
    int rows, channels;
};

template <class T>
struct LayerNormBackward {
    std::span<T> dresidual;
    std::span<float> dweight, dbias;
    std::span<float> dresidual_sum;  // empty: not needed
    std::span<float> scratch;  // layernorm_backward_scratch(channels) floats
    std::span<const T> dnormed, residual, weight;
    std::span<const float> mean, rstd;
    int rows, channels;
    bool accumulate_dresidual;   // false: dresidual is overwritten, true: added to
    bool accumulate_parameters;  // the same for dweight, dbias and dresidual_sum
};

// All enqueue on `stream`; outputs are ready when the stream has passed this point. In the fused form `residual` may be
// `left`. All throw Error if rows is 0, channels is not a multiple of 16 / sizeof(T), or a span is too short.
template <class T>
void layernorm_forward(const LayerNormForward<T>& op, StreamRef stream);
template <class T>
void residual_layernorm_forward(const ResidualLayerNormForward<T>& op, StreamRef stream);
std::size_t layernorm_backward_scratch(int channels);  // floats, for the current device
template <class T>
void layernorm_backward(const LayerNormBackward<T>& op, StreamRef stream);

}  // namespace kernels
