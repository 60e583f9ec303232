// bias_gradient.h - gradient of a bias that was added to every row, and that of the biases of attention's queries, keys
// and values
//
//   dbias[c] (+)= sum over rows of dout[row, c]
//
// Of queries, keys and values only the queries' need a sum over rows:
//   queries    dbias[c] (+)= sum over rows of dqkv[row, c]
//   keys       dbias[C + c] = 0: a key's bias adds the same to all scores of a query, and the softmax subtracts it
//   values     dbias[2C + c] = sum over o of dproj_bias[o] proj_weight[o, c]: every row of the softmax sums to 1, so
//              the values' gradients have the sum of attention's dout, dy proj_weight, and sum(dy) is dproj_bias
//
// Shapes    dout: (rows, channels) T; dbias: (channels) float. With C = channels: dqkv: (rows, 3C) T, proj_weight:
//           (C, C) T, row-major (out, in); dbias: (3C) float; dproj_bias: (C) float.
// Numerics  sums in float in a fixed order. The keys' is exactly 0. The values' follows from an accumulated dproj_bias,
//           so it is overwritten.
// Traffic   rows * channels * sizeof(T) bytes, a third of dqkv.
#pragma once
#include "kernels/device/types.h"

namespace kernels {

template <class T>
struct BiasGradient {
    std::span<float> dbias;
    std::span<float> scratch;  // bias_gradient_scratch(channels) floats
    std::span<const T> dout;
    int rows, channels;
    bool accumulate;  // false: dbias is overwritten, true: added to
};

template <class T>
struct QkvBiasGradient {
    std::span<float> dbias;
    std::span<float> scratch;  // bias_gradient_scratch(channels) floats
    std::span<const T> dqkv;
    std::span<const float> dproj_bias;  // complete: of all rows that dbias shall have
    std::span<const T> proj_weight;     // of the projection after attention
    int rows, channels;
    bool accumulate;  // of the queries
};

std::size_t bias_gradient_scratch(int channels);  // floats
// Both enqueue on `stream`, and throw Error if channels is not a multiple of 16 / sizeof(T) or a span is too short.
template <class T>
void bias_gradient(const BiasGradient<T>& op, StreamRef stream);
template <class T>
void qkv_bias_gradient(const QkvBiasGradient<T>& op, StreamRef stream);

}  // namespace kernels
