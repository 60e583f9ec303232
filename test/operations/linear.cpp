// linear.cpp - the matrix products of a linear layer, for every bf16 arithmetic
#include "kernels/device/device.h"
#include "kernels/matmul/few_rows.h"
#include "kernels/matmul/matmul.h"
#include "kernels/matmul/product.h"
#include "kernels/tuning/tuned_algorithms.h"
#include "test/operations/operation.h"

namespace operations::linear_operation {
namespace {

using kernels::Bf16Arithmetic;
using kernels::Matmul;

// The absolute error of tanh: 4e-7 in our own kernels (math.cuh), 2^-11 for the GPU's instruction, which a library may
// use in a bf16 epilogue.
template <class T> double tanh_error() { return device::is_gpu() && std::is_same_v<T, bf16> ? 0x1p-11 : 4e-7; }

struct LinearSizes {
    int rows, in, out;
    Bf16Arithmetic arithmetic;
    explicit LinearSizes(const Shape& s) : rows(s[0]), in(s[1]), out(s[2]), arithmetic(Bf16Arithmetic(s[3])) {}
    std::size_t in_size() const { return std::size_t(rows) * in; }
    std::size_t out_size() const { return std::size_t(rows) * out; }
    std::size_t weight_size() const { return std::size_t(out) * in; }
    double flops() const { return 2.0 * rows * in * out; }
    Fill weights() const { return {.deviation = 1 / std::sqrt(in)}; }
};
template <class T> bool has_arithmetic(const Shape& s) {
    return sizeof(T) == 2 || Bf16Arithmetic(s[3]) == Bf16Arithmetic::measure;
}

template <class T>
struct LinearForward : Operation {
    LinearSizes s{shape};
    bool with_bias = shape[4], with_gelu = shape[5];
    Matmul matmul{{.bf16 = s.arithmetic}};
    Tensor<T> in = input<T>("in", s.in_size()), weight = input<T>("weight", s.weight_size(), s.weights());
    Tensor<T> bias = input<T>("bias", with_bias ? s.out : 0);
    Tensor<T> pre = output<T>("pre", with_gelu ? s.out_size() : 0), out = output<T>("out", s.out_size());

    explicit LinearForward(const Shape& shape) : Operation(shape) {
        flops = s.flops();
        bytes = double(s.in_size() + s.weight_size() + s.out_size() * (1 + with_gelu)) * sizeof(T);
    }
    static bool applies(const Shape& shape) { return has_arithmetic<T>(shape); }
    void run(device::StreamRef stream) override {
        matmul.forward<T>({out, pre, in, weight, bias, s.rows, s.in, s.out}, stream);
    }
    template <class V> void formula(V& v) const {
        using N = typename V::Number;
        v.each(s.rows, [&v, s = s, with_bias = with_bias, with_gelu = with_gelu, x = v[in], w = v[weight], b = v[bias],
                        p = v[pre], y = v[out]](std::size_t row) {
            for (int o = 0; o < s.out; ++o) {
                Products<N> products;
                for (int c = 0; c < s.in; ++c) products.add(x[row * s.in + c], w[std::size_t(o) * s.in + c]);
                N sum = products.result(s.in);
                if (with_bias) sum += b[o];
                const std::size_t i = row * s.out + o;
                if (!with_gelu) y[i] = sum;
                else {
                    p[i] = sum;
                    y[i] = v.with_error(gelu(v.template perhaps_stored<T>(sum)),
                                        0.5 * tanh_error<T>() * std::fabs(double(sum)));
                }
            }
        });
    }
};

// An entry of a tune file that forces a form of a product; a library without the form uses another one.
struct Forced {
    kernels::TunedAlgorithms entries, *tuned = nullptr;
    Forced(bool force, kernels::Product product, DType dtype, const LinearSizes& s, const kernels::ProductForm& form) {
        const kernels::ProductShape shape{product, dtype, s.rows, s.in, s.out, true, form.gelu, false, false,
                                          form.residual};
        if (force) (tuned = &entries)->known[Matmul().library()][shape.problem()] = {name_of(form), "", 0};
    }
};

// The product with GELU by cuDNN.
template <class T>
struct LinearForwardByCudnn : LinearForward<T> {
    Forced forced{true, kernels::Product::forward, kernels::dtype_of<T>, this->s, {.gelu = true, .cudnn = true}};
    explicit LinearForwardByCudnn(const Shape& s) : LinearForward<T>({s[0], s[1], s[2], s[3], 1, 1}) {
        this->matmul = Matmul{{.bf16 = this->s.arithmetic, .tuned = forced.tuned}};
    }
    static bool applies(const Shape&) { return sizeof(T) == 2; }
};

// residual = left + in weight^T + bias, normed = LayerNorm(residual).
template <class T>
struct LinearLayerNorm : LinearForward<T> {
    int rows = this->s.rows, channels = this->s.out;
    bool in_place = this->shape[7];
    Forced forced{this->shape[6] != 0, kernels::Product::forward, kernels::dtype_of<T>, this->s, {.residual = true}};
    Tensor<T> left = this->template tensor<T>(in_place ? Role::in_out : Role::input, "left", this->s.out_size(), {});
    Tensor<T> residual = in_place ? left : this->template output<T>("residual", this->s.out_size());
    Tensor<T> ln_weight = this->template input<T>("LayerNorm's weight", channels);
    Tensor<T> ln_bias = this->template input<T>("LayerNorm's bias", channels);
    Tensor<T> normed = this->template output<T>("normed", this->s.out_size());
    Tensor<float> mean = this->template output<float>("mean", rows), rstd = this->template output<float>("rstd", rows);

    explicit LinearLayerNorm(const Shape& s) : LinearForward<T>({s[0], s[1], s[2], s[3], 1, 0, s[4], s[5]}) {
        this->tensors[this->out.number].role = Role::scratch;
        this->matmul = Matmul{{.bf16 = this->s.arithmetic, .tuned = forced.tuned}};
        this->bytes += 3.0 * this->s.out_size() * sizeof(T);
    }
    void run(device::StreamRef stream) override {
        this->matmul.template forward_layernorm<T>(
            {{this->out, {}, this->in, this->weight, this->bias, rows, this->s.in, channels},
             {residual, normed, mean, rstd, left, this->out, ln_weight, ln_bias, rows, channels}}, stream);
    }
    template <class V> void formula(V& v) const {
        using N = typename V::Number;
        LinearForward<T>::formula(v);
        v.each(rows, [&v, n = channels, d = v[this->out], l = v[left], x = v[residual], y = v[normed], m = v[mean],
                      r = v[rstd], w = v[ln_weight], b = v[ln_bias]](std::size_t row) {
            // Twice, because a square has the same error in both factors, which would otherwise be independent.
            const auto perhaps = [&](N a) { return v.template perhaps_stored<T>(v.template perhaps_stored<T>(a)); };
            for (std::size_t i = row * n; i < (row + 1) * n; ++i) x[i] = perhaps(N(l[i]) + perhaps(N(d[i])));
            normalise<N>(n, x, y, m, r, w, b, row);
        });
    }
};

template <class T>
struct FewRowsForward : LinearForward<T> {
    using LinearForward<T>::LinearForward;
    void run(device::StreamRef stream) override {
        kernels::few_rows_forward<T>({this->out, this->pre, this->in, this->weight, this->bias, this->s.rows,
                                      this->s.in, this->s.out}, stream);
    }
};

// out = in weight^T, or gelu(pre) weight^T, as a function of in or pre.
template <class T>
struct LinearOfInput : Operation {
    using Operation::Operation;
    LinearSizes s{shape};
    bool with_gelu = shape[4];
    Tensor<T> in = input<T>(with_gelu ? "pre" : "in", s.in_size());
    Tensor<T> weight = input<T>("weight", s.weight_size(), s.weights()), out = output<T>("out", s.out_size());

    template <class V> void formula(V& v) const {
        using N = typename V::Number;
        v.each(s.rows, [s = s, with_gelu = with_gelu, x = v[in], w = v[weight], y = v[out]](std::size_t row) {
            std::vector<N> sums(s.out);
            for (int c = 0; c < s.in; ++c) {
                const N from = with_gelu ? gelu(N(x[row * s.in + c])) : N(x[row * s.in + c]);
                for (int o = 0; o < s.out; ++o) sums[o] += from * N(w[std::size_t(o) * s.in + c]);
            }
            for (int o = 0; o < s.out; ++o) y[row * s.out + o] = sums[o];
        });
    }
};

template <class T>
struct LinearBackwardInput : Operation {
    LinearSizes s{shape};
    bool with_gelu = shape[4];
    int bias = shape.size() > 5 ? shape[5] : 0;  // 1: dbias is overwritten, 2: added to
    Forced forced{bias && shape[6], kernels::Product::backward_input, kernels::dtype_of<T>, s,
                  {.gelu = true, .bias_gradient = bias && shape[6] == 1, .cudnn = bias && shape[6] == 2}};
    Matmul matmul{{.bf16 = s.arithmetic, .tuned = forced.tuned}};
    Tensor<T> dout = input<T>("dout", s.out_size()), weight = input<T>("weight", s.weight_size(), s.weights());
    Tensor<T> pre = input<T>("pre", with_gelu ? s.in_size() : 0), din = output<T>("din", s.in_size());
    Tensor<float> dbias = bias ? output_or_in_out<float>(bias == 2, "dbias", s.in) : Tensor<float>{};

    explicit LinearBackwardInput(const Shape& shape) : Operation(shape) {
        flops = s.flops();
        bytes = double(s.out_size() + s.weight_size() + s.in_size() * (1 + with_gelu)) * sizeof(T);
        weights = {{dout.number, "out"}};
        gradients = {{din.number, with_gelu ? "pre" : "in", false}};
    }
    static bool applies(const Shape& shape) { return has_arithmetic<T>(shape); }
    void run(device::StreamRef stream) override {
        matmul.backward_input<T>({din, dout, weight, pre, s.rows, s.in, s.out,
                                  bias ? dbias.span() : std::span<float>(), bias == 2}, stream);
    }
    template <class V> void formula(V& v) const {
        using N = typename V::Number;
        v.each(s.rows, [&v, s = s, with_gelu = with_gelu, d = v[dout], w = v[weight], p = v[pre],
                        dx = v[din]](std::size_t row) {
            std::vector<Products<N>> sums(s.in);
            for (int o = 0; o < s.out; ++o)
                for (int c = 0; c < s.in; ++c) sums[c].add(d[row * s.out + o], w[std::size_t(o) * s.in + c]);
            for (int c = 0; c < s.in; ++c) {
                const N sum = sums[c].result(s.out);
                const std::size_t i = row * s.in + c;
                if (!with_gelu) {
                    dx[i] = sum;
                    continue;
                }
                const N x = p[i];  // the second derivative is at most 1.13
                dx[i] = v.template perhaps_stored<T>(sum) *
                        v.with_error(gelu_slope(x), 1.13 * tanh_error<T>() * (1 + std::fabs(double(x))));
            }
        });
        v.each(bias ? s.in : 0, [&v, s = s, added = bias == 2, dx = v[din], db = v[dbias]](std::size_t c) {
            N sum = 0;
            for (int row = 0; row < s.rows; ++row)
                sum += v.template perhaps_stored<T>(N(dx[std::size_t(row) * s.in + c]));
            sum = v.template perhaps_stored<T>(sum);
            db[c] = added ? N(db[c]) + sum : sum;
        });
    }
};

template <class T>
struct LinearBackwardWeight : Operation {
    LinearSizes s{shape};
    bool accumulate = shape[4];
    Matmul matmul{{.bf16 = s.arithmetic}};
    Tensor<T> dout = input<T>("dout", s.out_size()), in = input<T>("in", s.in_size());
    Tensor<float> dweight = output_or_in_out<float>(accumulate, "dweight", s.weight_size());

    explicit LinearBackwardWeight(const Shape& shape) : Operation(shape) {
        flops = s.flops();
        bytes = double(s.in_size() + s.out_size()) * sizeof(T) +
                double(s.weight_size()) * sizeof(float) * (1 + accumulate);
        weights = {{dout.number, "out"}};
        gradients = {{dweight.number, "weight", accumulate}};
    }
    static bool applies(const Shape& shape) { return has_arithmetic<T>(shape); }
    void run(device::StreamRef stream) override {
        matmul.backward_weight<T>({dweight, dout, in, s.rows, s.in, s.out, accumulate}, stream);
    }
    template <class V> void formula(V& v) const {
        using N = typename V::Number;
        v.each(s.out, [s = s, accumulate = accumulate, d = v[dout], x = v[in], dw = v[dweight]](std::size_t o) {
            std::vector<Products<N>> sums(s.in);
            for (int row = 0; row < s.rows; ++row) {
                const N slope = d[std::size_t(row) * s.out + o];
                for (int c = 0; c < s.in; ++c) sums[c].add(slope, x[std::size_t(row) * s.in + c]);
            }
            for (int c = 0; c < s.in; ++c) {
                // The old value may be added first, so it takes part in every rounding.
                if (accumulate) sums[c].add(dw[o * s.in + c], N(1));
                dw[o * s.in + c] = sums[c].result(s.rows);
            }
        });
    }
};

std::unique_ptr<Operation> without_bias_and_gelu(DType dtype, const Shape& s) {
    return make<LinearForward>(dtype, {s[0], s[1], s[2], s[3], 0, 0});
}

// One row, odd rows and few channels, with and without each of `choices` options (bias, GELU, accumulation); then every
// boundary of the tiles in which bf16 is widened (512 rows, 1024 columns, 768 in between), and one fp32 layer, with all
// options.
std::vector<Shape> edges(int choices) {
    auto shapes = with_each({{1, 16, 48}, {3, 48, 80}, {37, 80, 16}, {300, 48, 64}}, {0, 1, 2});
    auto tiles = joined(with_each({{520, 16, 16}, {520, 784, 16}, {520, 16, 1040}, {3, 784, 1040}, {4, 1040, 784},
                                   {800, 1040, 16}}, {2}), {{5, 768, 768, 0}});
    for (int choice = 0; choice < choices; ++choice) {
        shapes = with_each(shapes, {0, 1});
        tiles = with_each(tiles, {1});
    }
    return joined(shapes, tiles);
}
// The layers of GPT-2 124M.
std::vector<Shape> layers(int rows) {
    return with_each({{rows, 768, 2304}, {rows, 768, 768}, {rows, 768, 3072}, {rows, 3072, 768}}, {0});
}
const std::vector<Shape> kSmall = layers(256), kLarge = joined(layers(65536), {{8192, 768, 50304, 0}});
// arithmetic: 0 measured, 1 native, 2 widened
const std::vector<std::string> kForward{"rows", "in", "out", "arithmetic", "bias", "gelu"};
const std::vector<std::string> kInput{"rows", "in", "out", "arithmetic", "gelu"};
const std::vector<std::string> kWeight{"rows", "in", "out", "arithmetic", "add"};

const Registered forward({.name = "linear forward", .tag = "[matmul]", .dimensions = kForward,
                          .edges = edges(2), .small = with_each(kSmall, {1}, {0, 1}),
                          .large = with_each(kLarge, {1}, {0, 1}), .make = make<LinearForward>,
                          .same_on_any_threads = false});
const Registered forward_by_cudnn({.name = "linear forward by cuDNN", .tag = "[matmul]",
                                   .dimensions = {"rows", "in", "out", "arithmetic"},
                                   .edges = {{1, 16, 48, 0}, {300, 48, 64, 0}}, .small = {{256, 768, 3072, 0}},
                                   .large = {{65536, 768, 3072, 0}}, .make = make<LinearForwardByCudnn>,
                                   .same_on_any_threads = false});
// form: 0 the default, 1 fused-residual
const Registered layernorm_after({.name = "linear forward, LayerNorm", .tag = "[matmul]",
                                  .dimensions = {"rows", "in", "out", "arithmetic", "form", "in place"},
                                  .edges = with_each({{1, 16, 48, 0}, {37, 80, 16, 0}, {300, 48, 64, 2},
                                                      {5, 3072, 768, 0}}, {0, 1}, {0, 1}),
                                  .small = with_each(kSmall, {0, 1}, {0}), .large = with_each(kLarge, {0, 1}, {0}),
                                  .make = make<LinearLayerNorm>, .same_on_any_threads = false});
// Every number of rows, with several packs per lane, and a last pack that only some lanes have.
const std::vector<Shape> kFewRowsEdges{{1, 64, 48, 0}, {2, 48, 40, 0}, {3, 1056, 16, 0}, {4, 2080, 8, 0}};
const std::vector<Shape> kFewRows = with_each(joined(joined(layers(1), {{1, 768, 50304, 0}}), layers(4)), {1}, {0});
const Registered few_rows_forward({.name = "linear forward, few rows", .tag = "[few_rows]", .dimensions = kForward,
                                   .edges = with_each(kFewRowsEdges, {0, 1}, {0, 1}), .small = kFewRows,
                                   .large = kFewRows, .make = make<FewRowsForward>});
const Registered backward_input({.name = "linear backward input", .tag = "[matmul]", .dimensions = kInput,
                                 .edges = edges(1), .small = with_each(kSmall, {0, 1}),
                                 .large = with_each(kLarge, {0, 1}), .make = make<LinearBackwardInput>,
                                 .forward = make<LinearOfInput>, .same_on_any_threads = false});
// bias: 1 overwritten, 2 added to; form: 0 the default, 1 fused-gelu-bias, 2 cudnn-gelu
const Registered backward_input_bias({.name = "linear backward input, bias", .tag = "[matmul]",
                                      .dimensions = {"rows", "in", "out", "arithmetic", "gelu", "bias", "form"},
                                      .edges = joined(with_each({{1, 16, 48, 0, 1}, {300, 48, 64, 2, 1}}, {1, 2},
                                                                {0, 1, 2}), {{37, 80, 16, 0, 0, 2, 0}}),
                                      .small = with_each({{256, 3072, 768, 0, 1, 1}}, {0, 1, 2}),
                                      .large = with_each({{65536, 3072, 768, 0, 1, 1}}, {0, 1, 2}),
                                      .make = make<LinearBackwardInput>, .same_on_any_threads = false});
const Registered backward_weight({.name = "linear backward weight", .tag = "[matmul]", .dimensions = kWeight,
                                  .edges = edges(1), .small = with_each(kSmall, {1}), .large = with_each(kLarge, {1}),
                                  .make = make<LinearBackwardWeight>, .forward = without_bias_and_gelu,
                                  .same_on_any_threads = false});

}  // namespace
}  // namespace operations::linear_operation
