// layernorm.cpp - layer normalisation, alone and after a residual addition, and its gradient
#include "kernels/layernorm.h"

#include "test/operations/operation.h"

namespace operations::layernorm_operation {
namespace {

// Rows around an offset. Flat: the first row is constant, and the others have a deviation of about sqrt(epsilon), so
// that epsilon and the variance have the same magnitude.
Fill rows_about(const Shape& s) {
    const int channels = s[1], offset = s[2], flat = s[3];
    return flat ? Fill{.deviation = 3e-3, .first = std::vector<double>(channels, 0.25)} : Fill{.mean = double(offset)};
}
const Fill kWeight{.deviation = 0.3, .mean = 1};

template <class T>
struct LayerNormForward : Operation {
    int rows = shape[0], channels = shape[1];
    Tensor<T> residual = input<T>("residual", size(), rows_about(shape));
    Tensor<T> weight = input<T>("weight", channels, kWeight), bias = input<T>("bias", channels);
    Tensor<T> normed = output<T>("normed", size());
    Tensor<float> mean = output<float>("mean", rows), rstd = output<float>("rstd", rows);

    explicit LayerNormForward(const Shape& shape) : Operation(shape) { bytes = 2.0 * size() * sizeof(T); }
    std::size_t size() const { return std::size_t(rows) * channels; }
    void run(device::StreamRef stream) override {
        kernels::layernorm_forward<T>({normed, mean, rstd, residual, weight, bias, rows, channels}, stream);
    }
    template <class V> void formula(V& v) const {
        v.each(rows, [n = channels, x = v[residual], y = v[normed], m = v[mean], r = v[rstd], w = v[weight],
                      b = v[bias]](std::size_t row) { normalise<typename V::Number>(n, x, y, m, r, w, b, row); });
    }
};

template <class T>
struct ResidualLayerNormForward : Operation {
    int rows = shape[0], channels = shape[1];
    bool in_place = shape[4];
    Tensor<T> left = tensor<T>(in_place ? Role::in_out : Role::input, "left", size(), rows_about(shape));
    Tensor<T> right = input<T>("right", size(), {.deviation = shape[3] ? 0.0 : 1.0});
    Tensor<T> weight = input<T>("weight", channels, kWeight), bias = input<T>("bias", channels);
    Tensor<T> residual = in_place ? left : output<T>("residual", size());
    Tensor<T> normed = output<T>("normed", size());
    Tensor<float> mean = output<float>("mean", rows), rstd = output<float>("rstd", rows);

    explicit ResidualLayerNormForward(const Shape& shape) : Operation(shape) {
        tensors[residual.number].exact = true;
        bytes = 4.0 * size() * sizeof(T);
    }
    std::size_t size() const { return std::size_t(rows) * channels; }
    void run(device::StreamRef stream) override {
        kernels::residual_layernorm_forward<T>(
            {residual, normed, mean, rstd, left, right, weight, bias, rows, channels}, stream);
    }
    template <class V> void formula(V& v) const {
        using N = typename V::Number;
        const auto a = v[left], b = v[right], x = v[residual];
        v.each(rows, [=, this, &v, y = v[normed], m = v[mean], r = v[rstd], w = v[weight],
                      bias_ = v[bias]](std::size_t row) {
            for (std::size_t i = row * channels; i < (row + 1) * channels; ++i)
                x[i] = v.template stored<T>(N(a[i]) + N(b[i]));
            normalise<N>(channels, x, y, m, r, w, bias_, row);
        });
    }
};

template <class T>
struct LayerNormBackward : Operation {
    int rows = shape[0], channels = shape[1];
    bool adds = shape[4], adds_parameters = shape[5];
    Tensor<T> dnormed = input<T>("dnormed", size()), residual = input<T>("residual", size(), rows_about(shape));
    Tensor<T> weight = input<T>("weight", channels, kWeight);
    Tensor<float> mean = input<float>("mean", rows), rstd = input<float>("rstd", rows);
    Tensor<T> dresidual = output_or_in_out<T>(adds, "dresidual", size());
    Tensor<float> dweight = output_or_in_out<float>(adds_parameters, "dweight", channels);
    Tensor<float> dbias = output_or_in_out<float>(adds_parameters, "dbias", channels);
    Tensor<float> dresidual_sum = output_or_in_out<float>(adds_parameters, "sum of dresidual", channels);
    Tensor<float> work = scratch<float>("scratch", kernels::layernorm_backward_scratch(channels));

    explicit LayerNormBackward(const Shape& shape) : Operation(shape) {
        bytes = (adds ? 4.0 : 3.0) * size() * sizeof(T);
        weights = {{dnormed.number, "normed"}};
        gradients = {{dresidual.number, "residual", adds}, {dweight.number, "weight", adds_parameters},
                     {dbias.number, "bias", adds_parameters}};
    }
    std::size_t size() const { return std::size_t(rows) * channels; }
    void run(device::StreamRef stream) override {
        kernels::layernorm_backward<T>({dresidual, dweight, dbias, dresidual_sum, work, dnormed, residual, weight, mean,
                                        rstd, rows, channels, adds, adds_parameters}, stream);
    }
    template <class V> void formula(V& v) const {
        using N = typename V::Number;
        const auto x = v[residual], dy = v[dnormed], w = v[weight], dx = v[dresidual];
        const auto m = v[mean], r = v[rstd];
        const auto normal = [=, n = channels](std::size_t row, int c) {
            return (N(x[row * n + c]) - N(m[row])) * N(r[row]);
        };
        v.each(rows, [=, this](std::size_t row) {
            N sum = 0, sum_normal = 0;
            for (int c = 0; c < channels; ++c) {
                const N g = N(w[c]) * N(dy[row * channels + c]);
                sum += g;
                sum_normal += g * normal(row, c);
            }
            for (int c = 0; c < channels; ++c) {
                const std::size_t i = row * channels + c;
                const N slope = (N(w[c]) * N(dy[i]) - sum / N(channels) - normal(row, c) * (sum_normal / N(channels))) *
                                N(r[row]);
                dx[i] = adds ? N(dx[i]) + slope : slope;
            }
        });
        sum_rows(v, v[dweight], rows, channels, adds_parameters,
                 [=, n = channels](int row, int c) { return N(dy[std::size_t(row) * n + c]) * normal(row, c); });
        sum_rows(v, v[dbias], rows, channels, adds_parameters,
                 [=, n = channels](int row, int c) { return N(dy[std::size_t(row) * n + c]); });
        sum_rows(v, v[dresidual_sum], rows, channels, adds_parameters, [=, &v, n = channels](int row, int c) {
            return v.template perhaps_stored<T>(N(dx[std::size_t(row) * n + c]));
        });
    }
};

// Every instantiation of the kernels, with the GPU geometry and on a CPU, in the smallest shape that covers all its
// paths: one row; a number of rows that is not a multiple of a block's, with several rows per warp; GPT-2's widths;
// then rows of a block of warps in fp32 and backward, with several rows per block (1600), and in bf16 forward (1808);
// rows too wide for registers. 16, 80, 1000, 1808 and 12304 channels have a tail on a CPU, the others are whole packs.
// An offset of 100, which changes the sums of a row, wherever the code sums in a different way; `flat` tests epsilon.
const std::vector<Shape> kEdges{{1, 16, 0, 0},   {37, 80, 100, 0}, {5, 768, 0, 0},    {2, 1000, 100, 0},
                                {7, 1600, 0, 0}, {2, 1808, 100, 0}, {2, 12304, 0, 0}, {3, 96, 0, 1}};
const std::vector<Shape> kSmall{{1024, 768, 0, 0}}, kLarge{{65536, 768, 0, 0}};

// The fused form differs only in its inputs and outputs, so half of these shapes run in place. Accumulation in the
// backward pass does not depend on the instantiation, except for its loads.
std::vector<Shape> alternating(std::vector<Shape> shapes) {
    for (std::size_t i = 0; i < shapes.size(); ++i) shapes[i].push_back(i % 2);
    return shapes;
}
const std::vector<Shape> kBackwardEdges = joined(
    with_each(kEdges, {1}, {1}), {{37, 80, 100, 0, 0, 0}, {37, 80, 100, 0, 0, 1}, {37, 80, 100, 0, 1, 0},
                                  {7, 1600, 0, 0, 0, 0}, {1, 12304, 0, 0, 0, 0}});

const Registered forward({.name = "layernorm forward", .tag = "[layernorm]",
                          .dimensions = {"rows", "channels", "offset", "flat"}, .edges = kEdges, .small = kSmall,
                          .large = kLarge, .make = make<LayerNormForward>});
const Registered residual_forward({.name = "residual layernorm forward", .tag = "[layernorm]",
                                   .dimensions = {"rows", "channels", "offset", "flat", "in place"},
                                   .edges = alternating(kEdges), .small = with_each(kSmall, {0}),
                                   .large = with_each(kLarge, {0}), .make = make<ResidualLayerNormForward>});
const Registered backward({.name = "layernorm backward", .tag = "[layernorm]",
                           .dimensions = {"rows", "channels", "offset", "flat", "add dresidual", "add parameters"},
                           .edges = kBackwardEdges, .small = with_each(kSmall, {1}, {1}),
                           .large = with_each(kLarge, {1}, {1}), .make = make<LayerNormBackward>,
                           .forward = make<LayerNormForward>});

}  // namespace
}  // namespace operations::layernorm_operation
