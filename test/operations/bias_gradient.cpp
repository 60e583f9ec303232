// bias_gradient.cpp - column sums: the gradient of a bias that is added to every row; and the gradient of the biases of
// queries, keys and values
#include "kernels/bias_gradient.h"

#include "test/operations/operation.h"

namespace operations::bias_gradient_operation {
namespace {

// The forward pass: out = 0 + bias in every row.
template <class T>
struct AddBias : Operation {
    using Operation::Operation;
    int rows = shape[0], channels = shape[1];
    Tensor<T> bias = input<T>("bias", channels);
    Tensor<T> out = output<T>("out", std::size_t(rows) * channels);

    template <class V> void formula(V& v) const {
        v.each(rows, [n = channels, b = v[bias], y = v[out]](std::size_t row) {
            for (int c = 0; c < n; ++c) y[row * n + c] = b[c];
        });
    }
};

template <class T>
struct BiasGradient : Operation {
    int rows = shape[0], channels = shape[1];
    bool accumulate = shape[3];
    Tensor<T> dout = input<T>("dout", std::size_t(rows) * channels, {.mean = double(shape[2])});
    Tensor<float> dbias = output_or_in_out<float>(accumulate, "dbias", channels);
    Tensor<float> work = scratch<float>("scratch", kernels::bias_gradient_scratch(channels));

    explicit BiasGradient(const Shape& shape) : Operation(shape) {
        bytes = 1.0 * rows * channels * sizeof(T);
        weights = {{dout.number, "out"}};
        gradients = {{dbias.number, "bias", accumulate}};
    }
    void run(device::StreamRef stream) override {
        kernels::bias_gradient<T>({dbias, work, dout, rows, channels, accumulate}, stream);
    }
    template <class V> void formula(V& v) const {
        sum_rows(v, v[dbias], rows, channels, accumulate,
                 [n = channels, d = v[dout]](int row, int c) { return d[std::size_t(row) * n + c]; });
    }
};

template <class T>
struct QkvBiasGradient : Operation {
    int rows = shape[0], channels = shape[1];
    bool accumulate = shape[2];
    Tensor<T> dqkv = input<T>("dqkv", std::size_t(rows) * 3 * channels);
    Tensor<float> dproj_bias = input<float>("dproj_bias", channels);
    Tensor<T> proj_weight = input<T>("proj_weight", std::size_t(channels) * channels);
    Tensor<float> dbias = output_or_in_out<float>(accumulate, "dbias", 3 * channels);
    Tensor<float> work = scratch<float>("scratch", kernels::bias_gradient_scratch(channels));

    explicit QkvBiasGradient(const Shape& shape) : Operation(shape) {
        bytes = (1.0 * rows + channels) * channels * sizeof(T);
    }
    void run(device::StreamRef stream) override {
        kernels::qkv_bias_gradient<T>({dbias, work, dqkv, dproj_bias, proj_weight, rows, channels, accumulate}, stream);
    }
    template <class V> void formula(V& v) const {
        using N = typename V::Number;
        v.each(3 * channels, [n = std::size_t(channels), count = std::size_t(rows), adds = accumulate, d = v[dqkv],
                              dy = v[dproj_bias], w = v[proj_weight], out = v[dbias]](std::size_t c) {
            N sum = adds && c < n ? N(out[c]) : N(0);
            for (std::size_t row = 0; row < count && c < n; ++row) sum += N(d[row * 3 * n + c]);
            for (std::size_t o = 0; o < n && c >= 2 * n; ++o) sum += N(dy[o]) * N(w[o * n + c - 2 * n]);
            out[c] = sum;
        });
    }
};

// One row; less than a chunk; row counts that are not a multiple of a chunk or a team; more rows than the maximum
// number of minimal chunks; channels beyond one slice, and not a multiple of 32.
const std::vector<Shape> kEdges{{1, 16}, {3, 48}, {63, 80}, {65, 264}, {517, 768}, {517, 80}, {8300, 32}};
const Registered bias_gradient({.name = "bias gradient", .tag = "[bias_gradient]",
                                .dimensions = {"rows", "channels", "mean", "add"},
                                .edges = with_each(kEdges, {0, 100}, {0, 1}),
                                .small = {{1024, 3072, 0, 0}}, .large = {{65536, 3072, 0, 0}},
                                .make = make<BiasGradient>, .forward = make<AddBias>});
const Registered qkv_bias_gradient({.name = "qkv bias gradient", .tag = "[bias_gradient]",
                                    .dimensions = {"rows", "channels", "add"}, .edges = with_each(kEdges, {0, 1}),
                                    .small = {{1024, 768, 0}}, .large = {{65536, 768, 0}},
                                    .make = make<QkvBiasGradient>});

}  // namespace
}  // namespace operations::bias_gradient_operation
