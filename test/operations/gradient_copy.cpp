// gradient_copy.cpp - gradients rounded before an exchange between ranks, and copied or added after it
#include "kernels/gradient_copy.h"

#include "test/operations/operation.h"

namespace operations::gradient_copy_operation {
namespace {

// T is the type in which gradients are exchanged.
template <class T>
struct GradientCopy : Operation {
    bool accumulate = shape[1];
    Tensor<T> in = input<T>("in", shape[0]);
    Tensor<float> out = output_or_in_out<float>(accumulate, "out", shape[0]);

    explicit GradientCopy(const Shape& shape) : Operation(shape) {
        bytes = double(shape[0]) * (sizeof(T) + (accumulate ? 8 : 4));
    }
    void run(device::StreamRef stream) override { kernels::gradient_copy<float, T>({out, in, accumulate}, stream); }
    template <class V> void formula(V& v) const {
        v.each(in.storage().size, [&, add = accumulate, from = v[in], to = v[out]](std::size_t i) {
            using N = typename V::Number;
            to[i] = add ? v.template stored<float>(N(to[i]) + N(from[i])) : N(from[i]);  // exactly one float addition
        });
    }
};

struct GradientRounding : Operation {
    Tensor<float> in = input<float>("in", shape[0]);
    Tensor<bf16> out = output<bf16>("out", shape[0]);

    explicit GradientRounding(const Shape& shape) : Operation(shape) { bytes = 6.0 * shape[0]; }
    void run(device::StreamRef stream) override { kernels::gradient_copy<bf16, float>({out, in}, stream); }
    template <class V> void formula(V& v) const {
        v.each(in.storage().size, [from = v[in], to = v[out]](std::size_t i) { to[i] = from[i]; });
    }
};

// A tail of a block's threads; one tile and a little more, on a GPU and on a CPU.
const std::vector<Shape> kEdges{{0}, {16}, {1024}, {1040}, {16384}, {40000}};

const Registered gradient_copy({.name = "gradient copy", .tag = "[gradient_copy][one_order]",
                                .dimensions = {"elements", "add"}, .edges = with_each(kEdges, {0, 1}),
                                .small = with_each({{1 << 24}}, {0, 1}),
                                .large = with_each({{124475904}}, {0, 1}), .make = make<GradientCopy>});
const Registered gradient_rounding({.name = "gradient rounding", .tag = "[gradient_copy][one_order]",
                                    .dimensions = {"elements"}, .edges = kEdges, .small = {{1 << 25}},
                                    .large = {{124475904}}, .make = make_one<GradientRounding>,
                                    .dtypes = {DType::bf16}});

}  // namespace
}  // namespace operations::gradient_copy_operation
