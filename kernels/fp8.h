// fp8.h - rounding to 8-bit floats and transposition, for the fp8 products of matmul/matmul.h
//
//   fp8_scales:     s_x = 2^floor(log2(448 / (max |gamma| sqrt(channels) + max |beta|)))  for LayerNorm's output
//                   s_w = 2^floor(log2(448 / max |weight|)): neither product exceeds e4m3's range
//   fp8_round:      out = e4m3(scale * in)
//   fp8_transpose:  out[column, row] = in[row, column], and 0 for rows of padding
//
// Shapes    scales: kFp8Scales floats; gamma, beta: (channels) bf16; weight, and in and out of fp8_round: any number of
//           elements; fp8_transpose: in (rows, columns), out (columns, fp8_padded_rows(rows)), 8 bits each. Channels,
//           columns and numbers are multiples of 16.
// Numerics  to nearest, ties to even, saturating; NaN stays NaN. Scales are powers of two from 2^-40 to 2^40, so that
//           scaling is exact. They depend on weights alone, so no row's rounding depends on other rows.
// Traffic   fp8_scales 2 bytes, fp8_round 3 bytes, fp8_transpose 2 bytes per element.
#pragma once
#include "kernels/device/types.h"

namespace kernels {

enum Fp8Scale { kScaleX, kScaleW, kInverseX, kInverseW, kFp8Scales };  // indices of scales: s_x, s_w, and 1 / them

struct Fp8ScalesOp {
    std::span<float> scales, scratch;  // fp8_scales_scratch() floats
    std::span<const bf16> gamma, beta, weight;
};
struct Fp8Round {
    std::span<e4m3> out;
    std::span<const bf16> in;
    std::span<const float> scale;  // one
};
template <class T>
struct Fp8Transpose {
    std::span<T> out;
    std::span<const T> in;
    int rows, columns;
};

inline constexpr int fp8_padded_rows(int rows) { return round_up(rows, 16); }
std::size_t fp8_scales_scratch(std::size_t weights);

// All enqueue on `stream`. They throw Error for a span that is too short or a size that is no multiple.
void fp8_scales(const Fp8ScalesOp& op, StreamRef stream);
void fp8_round(const Fp8Round& op, StreamRef stream);
template <class T>
void fp8_transpose(const Fp8Transpose<T>& op, StreamRef stream);

}  // namespace kernels
