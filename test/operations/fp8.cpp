// fp8.cpp - scales, rounding and transposition of 8-bit floats, and their matrix products
#include "kernels/fp8.h"

#include "kernels/device/device.h"
#include "kernels/matmul/matmul.h"

#include "test/operations/operation.h"

namespace operations::fp8_operation {
namespace {

// Exact powers of two.
struct Fp8Scales : Operation {
    Tensor<float> scales = output<float>("scales", kernels::kFp8Scales);
    Tensor<float> partial = scratch<float>("scratch", kernels::fp8_scales_scratch(std::size_t(shape[1])));
    Tensor<bf16> gamma = input<bf16>("gamma", shape[0], {.mean = -1}), beta = input<bf16>("beta", shape[0]);
    Tensor<bf16> weight = input<bf16>("weight", shape[1], {.deviation = 0.02});

    explicit Fp8Scales(const Shape& shape) : Operation(shape) {
        bytes = 2.0 * shape[1];
        adjust(weight.number, [&](std::size_t i, double x) { return int(i) + 1 == shape[1] ? -0.45 : x; });
    }
    void run(device::StreamRef stream) override { kernels::fp8_scales({scales, partial, gamma, beta, weight}, stream); }
    template <class V> void formula(V& v) const {
        const auto largest = [&](const Tensor<bf16>& tensor) {
            double most = 0;
            for (std::size_t i = 0; i < tensor.storage().size; ++i)
                most = std::max(most, std::fabs(double(v[tensor][i])));
            return most;
        };
        const double bounds[] = {largest(gamma) * std::sqrt(double(shape[0])) + largest(beta), largest(weight)};
        for (int i = 0; i < 2; ++i) {
            const double scale = std::exp2(std::floor(std::log2(448 / bounds[i])));
            v[scales][kernels::kScaleX + i] = float(scale);
            v[scales][kernels::kInverseX + i] = float(1 / scale);
        }
    }
};

// Normally distributed values, some beyond the largest; every value and tie: test/kernels/fp8_test.cu.
struct Fp8Round : Operation {
    static constexpr float kScale = 0x1p7f;
    Tensor<e4m3> out = output<e4m3>("out", shape[0]);
    Tensor<bf16> in = input<bf16>("in", shape[0]);
    Tensor<float> scale = input<float>("scale", 1, {.deviation = 0, .mean = kScale});

    explicit Fp8Round(const Shape& shape) : Operation(shape) { bytes = 3.0 * shape[0]; }
    void run(device::StreamRef stream) override { kernels::fp8_round({out, in, scale}, stream); }
    template <class V> void formula(V& v) const {
        using N = typename V::Number;
        v.each(out.storage().size, [&v, x = v[in], y = v[out], s = v[scale]](std::size_t i) {
            y[i] = v.template stored<e4m3>(N(x[i]) * N(s[0]));
        });
    }
};

struct Fp8Transpose : Operation {
    int rows = shape[0], columns = shape[1], padded = kernels::fp8_padded_rows(rows);
    Tensor<e5m2> out = output<e5m2>("out", std::size_t(padded) * columns);
    Tensor<e5m2> in = input<e5m2>("in", std::size_t(rows) * columns);

    explicit Fp8Transpose(const Shape& shape) : Operation(shape) { bytes = double(rows + padded) * columns; }
    void run(device::StreamRef stream) override { kernels::fp8_transpose<e5m2>({out, in, rows, columns}, stream); }
    template <class V> void formula(V& v) const {
        using N = typename V::Number;
        v.each(columns, [=, this, x = v[in], y = v[out]](std::size_t c) {
            for (int row = 0; row < padded; ++row)
                y[c * padded + row] = row < rows ? N(x[std::size_t(row) * columns + c]) : N(0);
        });
    }
};

template <class Left, class Out>
struct Fp8Product : Operation {
    int m = shape[0], n = shape[1], k = shape[2];
    bool add = shape[3];
    float factor = std::is_same_v<Left, e4m3> ? 1.0f : 1.0f / 37;
    kernels::Matmul matmul{};
    Tensor<Left> left = input<Left>("left", std::size_t(m) * k);
    Tensor<e4m3> right = input<e4m3>("right", std::size_t(n) * k);
    Tensor<float> left_factor = input<float>("left's factor", 1, {.deviation = 0, .mean = 0x1p-6});
    Tensor<float> right_factor = input<float>("right's factor", 1, {.deviation = 0, .mean = 0x1p-2});
    Tensor<Out> out = output_or_in_out<Out>(add, "out", std::size_t(m) * n);

    explicit Fp8Product(const Shape& shape) : Operation(shape) {
        flops = 2.0 * m * n * k;
        bytes = (double(m) + n) * k + double(m) * n * sizeof(Out) * (1 + add);
    }
    void run(device::StreamRef stream) override {
        matmul.multiply<Left, Out>({out, left, right, left_factor, right_factor, m, n, k, factor, add}, stream);
    }
    template <class V> void formula(V& v) const {
        using N = typename V::Number;
        v.each(m, [&v, this, a = v[left], b = v[right], fa = v[left_factor], fb = v[right_factor],
                   y = v[out]](std::size_t row) {
            for (int j = 0; j < n; ++j) {
                Products<N> sum;
                for (int i = 0; i < k; ++i) sum.add(a[row * k + i], b[std::size_t(j) * k + i]);
                // Partial sums in tensor cores have about 14 bits on Hopper.
                const N product = v.with_error(sum.result(k), device::is_gpu() ? 0x1p-12 * std::sqrt(k) : 0) *
                                  N(fa[0]) * N(fb[0]) * N(factor);
                y[row * n + j] = add ? N(y[row * n + j]) + product : product;
            }
        });
    }
};

const Registered scales({.name = "fp8 scales", .tag = "[fp8]", .dimensions = {"channels", "weights"},
                         .edges = {{16, 16}, {48, 48 * 61}, {768, 65536}, {4112, 2 * 65536 + 16}},
                         .small = {{768, 50304 * 768}}, .large = {{768, 50304 * 768}}, .make = make_one<Fp8Scales>,
                         .dtypes = {DType::bf16}});
const Registered round({.name = "fp8 round", .tag = "[fp8][one_order]", .dimensions = {"elements"},
                        .edges = {{16}, {1040}, {70000}}, .small = {{1024 * 768}}, .large = {{65536 * 768}},
                        .make = make_one<Fp8Round>, .dtypes = {DType::bf16}});
// One tile and less, padded rows, and several tiles both ways.
const Registered transpose({.name = "fp8 transpose", .tag = "[fp8]", .dimensions = {"rows", "columns"},
                            .edges = {{1, 16}, {16, 16}, {37, 48}, {128, 128}, {131, 272}, {300, 144}},
                            .small = {{256, 50304}}, .large = {{65536, 50304}, {65536, 768}},
                            .make = make_one<Fp8Transpose>, .dtypes = {DType::bf16}});

// Odd rows, and the boundaries of the tiles in which a CPU widens (512 rows, 1024 columns, 768 in between).
const std::vector<Shape> kProducts{{1, 48, 16}, {3, 16, 80}, {37, 80, 48}, {520, 16, 784}, {3, 1040, 32}};
const std::vector<std::string> kDimensions{"m", "n", "k", "add"};
const Registered forward({.name = "fp8 product", .tag = "[fp8][matmul]", .dimensions = kDimensions,
                          .edges = with_each(kProducts, {0}), .small = {{256, 50304, 768, 0}},
                          .large = {{65536, 50304, 768, 0}}, .make = make_one<Fp8Product<e4m3, bf16>>,
                          .dtypes = {DType::bf16}, .same_on_any_threads = false});
const Registered backward_input({.name = "fp8 product of gradients", .tag = "[fp8][matmul]", .dimensions = kDimensions,
                                 .edges = with_each(kProducts, {0}), .small = {{256, 768, 50304, 0}},
                                 .large = {{65536, 768, 50304, 0}}, .make = make_one<Fp8Product<e5m2, bf16>>,
                                 .dtypes = {DType::bf16}, .same_on_any_threads = false});
const Registered backward_weight({.name = "fp8 product to fp32", .tag = "[fp8][matmul]", .dimensions = kDimensions,
                                  .edges = with_each(kProducts, {0, 1}), .small = {{50304, 768, 256, 1}},
                                  .large = {{50304, 768, 65536, 1}}, .make = make_one<Fp8Product<e5m2, float>>,
                                  .dtypes = {DType::bf16}, .same_on_any_threads = false});

}  // namespace
}  // namespace operations::fp8_operation
