// sketch.h - a linear sketch of a gradient: few numbers, whose squared norm is in the mean that of the gradient
//
//   sketch[j] = scale * sum over i with i % kSketchBuckets = j of e_i values[i]
//   e_i = -1 where the highest bit of mix(mix(mix(draw) + i / kSketchBuckets) + i % kSketchBuckets) is set, else +1:
//   signs by a hash of (draw, i)
//
// Being linear, the mean of the ranks' sketches is the sketch of their mean gradient: 64 KiB instead of a full
// all-reduce say how long that is where it is never formed (1-bit optimizers). Over the draws of the signs E|sketch|^2
// = scale^2 |values|^2, with a relative deviation of sqrt(2 / kSketchBuckets) at most where no bucket dominates. The
// number of buckets is prime, so that it does not line up with the widths of tensors.
//
// Shapes    values: (elements) float; sketch: (kSketchBuckets) float.
// Numerics  sums in float in an order that depends on `elements` alone.
// Traffic   elements * 4 bytes.
// Source    Charikar, Chen, Farach-Colton 2002 (count sketch); mix, a hash of 32 bits, is MurmurHash3's finaliser
//           (Appleby).
#pragma once
#include "kernels/device/types.h"

namespace kernels {

inline constexpr int kSketchBuckets = 16381;

struct Sketch {
    std::span<float> sketch;         // overwritten
    std::span<float> scratch;        // sketch_scratch() floats
    std::span<const float> values;
    float scale;
    std::uint32_t draw;              // which signs: the same on all ranks, new in every step
};

std::size_t sketch_scratch();  // floats
// Enqueues on `stream`. Throws Error if sketch or scratch is too short.
void sketch(const Sketch& op, StreamRef stream);

}  // namespace kernels
