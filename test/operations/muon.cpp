// muon.cpp - the elementwise passes of Muon, and general products, which its orthogonalization consists of
#include "kernels/muon.h"

#include "kernels/device/memory.h"
#include "kernels/grad_norm.h"
#include "kernels/matmul/matmul.h"
#include "test/operations/operation.h"

namespace operations::muon_operation {
namespace {

using kernels::MuonTile;
using kernels::StepScalars;

constexpr float kMu = 0.95f, kWeightDecay = 0.1f, kLearningRateFactor = 1.5f, kScale = 5.5f;

// Three matrices of `size` elements, in the flat array at a distance of 16 elements and in reverse order.
struct Matrices {
    static constexpr int kCount = 3;
    std::int64_t size;
    bool packed;  // gradients, and in bf16 master weights
    std::vector<MuonTile> tiles;
    StepScalars step{.adam_step = 7, .learning_rate = 0.02f, .grad_scale = 0.37f};
    device::Array<MuonTile> device_tiles;
    device::Array<StepScalars> device_step;

    explicit Matrices(const Shape& s) : size(s[0]), packed(s.size() > 2 && s[2]) {
        if (s.size() > 1 && s[1]) step.skip = kernels::kSkipOutlier;
        for (int matrix = 0; matrix < kCount; ++matrix)
            kernels::append_muon_tiles(tiles, matrix, matrix * size, flat_of(matrix), size);
        device_tiles = {tiles, nullptr};
        device_step = {{&step, 1}, nullptr};
    }
    std::int64_t flat_of(int matrix) const { return (kCount - 1 - matrix) * (size + 16); }
    std::int64_t flat() const { return kCount * (size + 16); }
    std::int64_t elements() const { return kCount * size; }
    bool skipped() const { return step.skip != kernels::kNoSkip; }
};

template <class T>
struct MuonMomentum : Operation {
    Matrices of{shape};
    Tensor<float> momentum = in_out<float>("momentum", of.elements(), {.deviation = 0.01});
    Tensor<float> grad = input<float>("grad", of.flat(), {.deviation = 0.01});
    Tensor<T> direction = in_out<T>("direction", of.elements());
    Tensor<double> partial = scratch<double>("partial", of.tiles.size());
    Tensor<double> squared_norm = output<double>("squared norm", Matrices::kCount);

    explicit MuonMomentum(const Shape& shape) : Operation(shape) {
        bytes = double(of.elements()) * (12 + sizeof(T));
    }
    void run(device::StreamRef stream) override {
        kernels::muon_momentum<T>({momentum, direction, partial, grad, of.device_tiles.span(), of.device_step.span(),
                                   kMu, of.packed}, stream);
    }
    void collect() override {
        add_up(partial, squared_norm, [this](std::size_t tile) { return of.tiles[tile].matrix; });
    }
    template <class V> void formula(V& v) const {
        using N = typename V::Number;
        v.each(Matrices::kCount, [&, m = v[momentum], g = v[grad], u = v[direction],
                                  norm = v[squared_norm]](std::size_t matrix) {
            typename V::Sum total = 0;
            for (std::int64_t i = 0; i < of.size && !of.skipped(); ++i) {
                const std::size_t at = matrix * std::size_t(of.size) + std::size_t(i);
                const std::size_t from = of.packed ? at : std::size_t(of.flat_of(int(matrix)) + i);
                const N scaled = N(g[from]) * N(of.step.grad_scale);
                m[at] = N(kMu) * N(m[at]) + (N(1) - N(kMu)) * scaled;
                const N direction = (N(1) - N(kMu)) * scaled + N(kMu) * N(m[at]);
                u[at] = direction;
                v.add_in_double(total, direction * direction);
            }
            norm[matrix] = N(total);
        });
    }
};

template <class T>
struct MuonNormalize : Operation {
    Matrices of{shape};
    Tensor<T> direction = in_out<T>("direction", of.elements());
    // one matrix that is not 0 but below the smallest norm
    Tensor<double> squared_norm = input<double>("squared norm", Matrices::kCount, {.first = {2.5e30, 1e-20, 0.75}});

    explicit MuonNormalize(const Shape& shape) : Operation(shape) {
        bytes = double(of.elements()) * 2 * sizeof(T);
    }
    void run(device::StreamRef stream) override {
        kernels::muon_normalize<T>({direction, squared_norm, of.device_tiles.span()}, stream);
    }
    template <class V> void formula(V& v) const {
        using N = typename V::Number;
        v.each(Matrices::kCount, [&, x = v[direction], norm = v[squared_norm]](std::size_t matrix) {
            const double factor = 1 / std::max(std::sqrt(double(N(norm[matrix]))), 1e-7);
            for (std::size_t i = matrix * std::size_t(of.size); i < (matrix + 1) * std::size_t(of.size); ++i)
                x[i] = N(x[i]) * N(1.0f * float(factor));
        });
    }
};

template <class T>
struct MuonUpdate : Operation {
    Matrices of{shape};
    bool cautious = shape[3];
    Tensor<float> master = in_out<float>("master", of.flat(), {.deviation = 0.02});
    Tensor<T> direction = input<T>("direction", of.elements(), {.deviation = 0.05});
    Tensor<T> parameter = parameter_of<T>(master, Role::in_out);

    explicit MuonUpdate(const Shape& shape) : Operation(shape) { bytes = double(of.elements()) * 12; }
    void run(device::StreamRef stream) override {
        kernels::muon_update<T>({parameter, master, direction, kScale, of.device_tiles.span(), of.device_step.span(),
                                 kLearningRateFactor, kWeightDecay, {}, of.packed && sizeof(T) == 2, cautious}, stream);
    }
    template <class V> void formula(V& v) const {
        using N = typename V::Number;
        if (of.skipped()) return;
        v.each(Matrices::kCount, [&, w = v[master], o = v[direction]](std::size_t matrix) {
            const N lr = N(of.step.learning_rate) * N(kLearningRateFactor);
            for (std::int64_t i = 0; i < of.size; ++i) {
                const std::size_t flat = std::size_t(of.flat_of(int(matrix)) + i),
                                  first = matrix * std::size_t(of.size) + std::size_t(i),
                                  at = of.packed && sizeof(T) == 2 ? first : flat;
                const N direction = o[first];
                const bool decays = !cautious || double(direction) * double(N(w[at])) >= 0;
                w[at] = (decays ? N(1) - lr * N(kWeightDecay) : N(1)) * N(w[at]) - lr * N(kScale) * direction;
                if constexpr (sizeof(T) == 2) v[parameter][flat] = w[at];
            }
        });
    }
};

// The sizes of kernels::ScaledProduct, then: bits 1 and 2 transpose left and right, bit 4 adds, bit 8 adds to out; with
// bit 16 right is left, of which one is transposed: kernels::SymmetricProduct.
template <class T>
struct ScaledProduct : Operation {
    static constexpr float kAlpha = 0.75f, kBeta = -1.5f;
    int m = shape[0], n = shape[1], k = shape[2], batch = shape[3];
    bool left_transposed = shape[4] & 1, right_transposed = shape[4] & 2, adds = shape[4] & 12, in_place = shape[4] & 8;
    bool symmetric = shape[4] & 16;
    kernels::Matmul matmul{{.bf16 = kernels::Bf16Arithmetic(shape[5])}};
    Tensor<T> left = input<T>("left", std::size_t(batch) * m * k);
    Tensor<T> right =
        symmetric ? left : input<T>("right", std::size_t(batch) * k * n, {.deviation = 1 / std::sqrt(k)});
    Tensor<T> addend = input<T>("addend", adds && !in_place ? std::size_t(batch) * m * n : 0);
    Tensor<T> out = output_or_in_out<T>(in_place, "out", std::size_t(batch) * m * n);

    explicit ScaledProduct(const Shape& shape) : Operation(shape) {
        flops = 2.0 * batch * m * n * k;
        bytes = double(left.storage().size + right.storage().size + addend.storage().size +
                       out.storage().size * (1 + in_place)) * sizeof(T);
        if (symmetric && adds)
            adjust(addend.number, [&](std::size_t i, double) {
                const std::size_t row = i / m % m, column = i % m, first = i - row * m - column;
                return addend.storage().initial(first + std::max(row, column) * m + std::min(row, column));
            });
    }
    static bool applies(const Shape& s) {
        constexpr int kMultiple = 16 / sizeof(T);
        return s[0] % kMultiple == 0 && s[1] % kMultiple == 0 && s[2] % kMultiple == 0 &&
               (sizeof(T) == 2 || s[5] == 0);
    }
    void run(device::StreamRef stream) override {
        if (symmetric)
            return matmul.multiply<T>({.out = out, .x = left, .addend = addend, .m = m, .k = k, .batch = batch,
                                       .transposed = left_transposed, .alpha = kAlpha, .beta = adds ? kBeta : 0},
                                      stream);
        const std::span<const T> added = in_place ? std::span<const T>(out.span()) : std::span<const T>(addend.span());
        matmul.multiply<T>({.out = out, .left = left, .right = right, .addend = added, .m = m, .n = n, .k = k,
                            .batch = batch, .left_transposed = left_transposed, .right_transposed = right_transposed,
                            .alpha = kAlpha, .beta = adds ? kBeta : 0}, stream);
    }
    template <class V> void formula(V& v) const {
        using N = typename V::Number;
        v.each(std::size_t(batch) * m, [&, a = v[left], b = v[right], c = v[addend], d = v[out]](std::size_t row) {
            const std::size_t item = row / m, i = row % m;
            for (std::size_t j = 0; j < std::size_t(n); ++j) {
                Products<N> products;
                for (std::size_t x = 0; x < std::size_t(k); ++x) {
                    const std::size_t at_left = item * m * k + (left_transposed ? x * m + i : i * k + x),
                                      at_right = item * k * n + (right_transposed ? j * k + x : x * n + j);
                    products.add(a[at_left], b[at_right]);
                }
                const std::size_t at = row * n + j;
                const N sum = N(kAlpha) * products.result(k);
                if (!adds) d[at] = sum;
                else d[at] = sum + N(kBeta) * N(in_place ? N(d[at]) : N(c[at]));
            }
        });
    }
};

// A part of a pack of threads, whole tiles, and a little more.
const std::vector<Shape> kSizes = with_each({{16}, {1024}, {1040}, {16384}, {40000}}, {0, 1}, {0, 1});
const Registered momentum({.name = "muon momentum", .tag = "[muon][one_order]",
                           .dimensions = {"elements of a matrix", "skipped", "packed"}, .edges = kSizes,
                           .small = {{1 << 22, 0, 0}}, .large = {{28311552, 0, 0}}, .make = make<MuonMomentum>});
const Registered normalize({.name = "muon normalize", .tag = "[muon][one_order]",
                            .dimensions = {"elements of a matrix"}, .edges = {{16}, {1040}, {16384}, {40000}},
                            .small = {{1 << 22}}, .large = {{28311552}}, .make = make<MuonNormalize>});
const Registered update({.name = "muon update", .tag = "[muon][one_order]",
                         .dimensions = {"elements of a matrix", "skipped", "packed", "cautious"},
                         .edges = with_each(kSizes, {0, 1}), .small = {{1 << 22, 0, 0, 0}},
                         .large = {{28311552, 0, 0, 0}}, .make = make<MuonUpdate>});

// Transposed factors, additions out of place and in place, a batch; symmetric ones, on a CPU from 384 rows on by half;
// in bf16 also by widening.
std::vector<Shape> products() {
    auto shapes = with_each({{8, 16, 24, 1}, {48, 40, 64, 3}, {4, 8, 4, 2}, {136, 72, 520, 1}}, {0, 1, 2, 3, 4, 7, 8}),
         symmetric = with_each({{48, 48, 72, 3}, {384, 384, 8, 2}, {392, 392, 40, 1}, {520, 520, 24, 1}},
                               {17, 18, 21, 22});
    return with_each(joined(shapes, symmetric), {0, 2});
}
// The products of newton_schulz() for a layer of GPT-2 124M: gram, polynomial and update of (768, 768) and (768, 3072).
std::vector<Shape> newton_schulz() {
    return {{768, 768, 768, 4, 2, 0}, {768, 768, 768, 4, 4, 0}, {768, 768, 3072, 2, 2, 0}, {768, 3072, 768, 2, 4, 0}};
}
const Registered scaled_product({.name = "scaled product", .tag = "[matmul][muon]",
                                 .dimensions = {"m", "n", "k", "batch", "form", "arithmetic"}, .edges = products(),
                                 .small = newton_schulz(), .large = newton_schulz(), .make = make<ScaledProduct>,
                                 .same_on_any_threads = false});

}  // namespace
}  // namespace operations::muon_operation
