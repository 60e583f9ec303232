// sketch.cpp - the linear sketch of a gradient
#include "kernels/sketch.h"

#include "test/operations/operation.h"

namespace operations::sketch_operation {
namespace {

using kernels::kSketchColumns;

constexpr float kScale = 0.37f;

// MurmurHash3's finaliser.
std::uint32_t mix(std::uint32_t x) {
    x ^= x >> 16;
    x *= 0x85ebca6b;
    x ^= x >> 13;
    x *= 0xc2b2ae35;
    return x ^ x >> 16;
}

struct Sketch : Operation {
    int elements = shape[0];
    std::uint32_t draw = shape[1];
    Tensor<float> gradient = input<float>("values", elements);
    Tensor<float> work = scratch<float>("scratch", kernels::sketch_scratch());
    Tensor<float> out = output<float>("sketch", kSketchColumns);

    explicit Sketch(const Shape& shape) : Operation(shape) { bytes = 4.0 * elements; }
    void run(device::StreamRef stream) override { kernels::sketch({out, work, gradient, kScale, draw}, stream); }
    template <class V> void formula(V& v) const {
        using N = typename V::Number;
        const int rows = (elements + kSketchColumns - 1) / kSketchColumns;
        sum_rows(v, v[out], rows, kSketchColumns, false,
                 [&, seed = mix(draw), x = v[gradient]](int row, int column) -> N {
                     const int i = row * kSketchColumns + column;
                     if (i >= elements) return 0;
                     const bool negative = mix(mix(seed + std::uint32_t(row)) + std::uint32_t(column)) >> 31;
                     return negative ? -N(x[i]) : N(x[i]);
                 });
        v.each(kSketchColumns, [sums = v[out]](std::size_t column) { sums[column] = sums[column] * N(kScale); });
    }
};

// No elements; one element less than a row, a row, a little more; one row for each run of rows and a little more.
const Registered sketch({.name = "sketch", .tag = "[sketch][one_order]", .dimensions = {"elements", "draw"},
                         .edges = {{0, 0}, {64, 5}, {kSketchColumns - 1, 5}, {kSketchColumns, 0},
                                   {kSketchColumns + 70, 5}, {33 * kSketchColumns + 5, 0}},
                         .small = {{1 << 24, 5}}, .large = {{124475904, 5}}, .make = make_one<Sketch>,
                         .dtypes = {DType::fp32}});

}  // namespace
}  // namespace operations::sketch_operation
