// gelu.cpp - GELU in its tanh form and its gradient
#include "kernels/gelu.h"

#include "test/operations/operation.h"

namespace operations::gelu_operation {
namespace {

// The whole range of the types, including arguments for which the exponential over- or underflows.
const Fill kArguments{.deviation = 3,
                      .first = {0.0, -0.0, 1e-30, -1e-30, 5.0, -5.0, 12.0, -12.0, 300.0, -300.0, 1e6, -1e6}};

template <class T>
struct GeluForward : Operation {
    Tensor<T> in = input<T>("in", shape[0], kArguments), out = output<T>("out", shape[0]);

    explicit GeluForward(const Shape& shape) : Operation(shape) { bytes = 2.0 * shape[0] * sizeof(T); }
    void run(device::StreamRef stream) override { kernels::gelu_forward<T>({out, in}, stream); }
    template <class V> void formula(V& v) const {
        const auto x = v[in], y = v[out];
        v.each(in.storage().size, [=](std::size_t i) { y[i] = gelu<typename V::Number>(x[i]); });
    }
};

template <class T>
struct GeluBackward : Operation {
    bool in_place = shape[1];
    Tensor<T> in = input<T>("in", shape[0], kArguments);
    Tensor<T> dout = in_place ? in_out<T>("dout", shape[0]) : input<T>("dout", shape[0]);
    Tensor<T> din = in_place ? dout : output<T>("din", shape[0]);

    explicit GeluBackward(const Shape& shape) : Operation(shape) {
        bytes = 3.0 * shape[0] * sizeof(T);
        weights = {{dout.number, "out"}};
        gradients = {{din.number, "in", false}};
    }
    void run(device::StreamRef stream) override { kernels::gelu_backward<T>({din, dout, in}, stream); }
    template <class V> void formula(V& v) const {
        using N = typename V::Number;
        const auto x = v[in], dy = v[dout], dx = v[din];
        v.each(in.storage().size, [=](std::size_t i) { dx[i] = N(dy[i]) * gelu_slope<N>(x[i]); });
    }
};

// One pack, tails, several blocks and a tail, large packs.
const std::vector<Shape> kEdges{{8}, {32}, {24}, {1000}, {4096 * 8 + 8}, {100 * 1024}};
const std::vector<Shape> kSmall{{1024 * 3072}}, kLarge{{65536 * 3072}};

const Registered forward({.name = "gelu forward", .tag = "[gelu][one_order]", .dimensions = {"elements"},
                          .edges = kEdges, .small = kSmall, .large = kLarge, .make = make<GeluForward>});
const Registered backward({.name = "gelu backward", .tag = "[gelu][one_order]", .dimensions = {"elements", "in place"},
                           .edges = with_each(kEdges, {0, 1}), .small = with_each(kSmall, {0}),
                           .large = with_each(kLarge, {0}), .make = make<GeluBackward>, .forward = make<GeluForward>});

}  // namespace
}  // namespace operations::gelu_operation
