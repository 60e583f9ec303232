// sketch.h - a linear sketch of a gradient: a short vector whose expected squared norm is that of the gradient
//
//   sketch[j] = scale * sum over i with i % kSketchColumns = j of e_i values[i]
//   e_i = -1 if the highest bit of mix(mix(mix(draw) + i / kSketchColumns) + i % kSketchColumns) is set, otherwise +1:
//   signs from a hash of (draw, i)
//
// The sketch is linear, so the mean of the ranks' sketches is the sketch of their mean gradient: an all-reduce of 64
// KiB instead of the full gradient estimates its norm where the mean itself is never formed (1-bit optimizers). Over
// random signs E|sketch|^2 = scale^2 |values|^2, with a relative deviation of at most sqrt(2 / kSketchColumns) if no
// column dominates. The number of columns is prime, so that it does not align with the widths of tensors.
//
// Shapes    values: (elements) float; sketch: (kSketchColumns) float.
// Numerics  sums in float in an order that depends only on `elements`.
// Traffic   elements * 4 bytes.
// Source    Charikar, Chen, Farach-Colton 2002 (count sketch); mix, a 32-bit hash, is MurmurHash3's finaliser
//           (Appleby).
#pragma once
#include "kernels/device/types.h"

namespace kernels {

inline constexpr int kSketchColumns = 16381;

struct Sketch {
    std::span<float> sketch;         // overwritten
    std::span<float> scratch;        // sketch_scratch() floats
    std::span<const float> values;
    float scale;
    std::uint32_t draw;              // selects the signs: the same on all ranks, new in every step
};

std::size_t sketch_scratch();  // floats
// Enqueues on `stream`. Throws Error if sketch or scratch is too short.
void sketch(const Sketch& op, StreamRef stream);

}  // namespace kernels
