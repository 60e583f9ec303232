// newton_schulz_test.cpp - orthogonalized matrices against published vectors, and three updates of Muon
#include "kernels/matmul/newton_schulz.h"

#include <array>

#include "kernels/grad_norm.h"
#include "kernels/muon.h"
#include "test/support/support.h"

using namespace kernels;

namespace {

using Doubles = std::vector<double>;
constexpr std::array<NewtonSchulzStep, 5> kPolarExpress{
    {{8.156554524902461f, -22.48329292557795f, 15.878769915207462f},
     {4.042929935166739f, -2.808917465908714f, 0.5000178451051316f},
     {3.8916678022926607f, -2.772484153217685f, 0.5060648178503393f},
     {3.285753657755655f, -2.3681294933425376f, 0.46449024233003106f},
     {2.3465413258596377f, -1.7097828382687081f, 0.42323551169305323f}}};

// sin(0.7 i^2 + 1.3 i + phase), row-major
Doubles wave(int rows, int columns, double phase) {
    Doubles values;
    for (int i = 0; i < rows * columns; ++i) values.push_back(std::sin(0.7 * i * i + 1.3 * i + phase));
    return values;
}

// Row-major (rows, columns) matrices, padded with zeros to multiples of 8, which changes no singular value but adds 0s.
struct Padded {
    int rows, columns, all_rows = (rows + 7) / 8 * 8, all_columns = (columns + 7) / 8 * 8;
    Padded(int rows, int columns) : rows(rows), columns(columns) {
        // as wide or as tall as the matrix itself
        if (rows > columns) all_rows = std::max(all_rows, all_columns + 8);
        if (rows < columns) all_columns = std::max(all_columns, all_rows + 8);
    }
    std::size_t size() const { return std::size_t(all_rows) * all_columns; }
    template <class T> std::vector<T> pad(const Doubles& values) const {
        std::vector<T> all(size());
        for (int i = 0; i < rows; ++i)
            for (int j = 0; j < columns; ++j)
                all[std::size_t(i * all_columns + j)] = test::narrow<T>(values[std::size_t(i * columns + j)]);
        return all;
    }
    template <class T> Doubles crop(const std::vector<T>& all) const {
        Doubles values;
        for (int i = 0; i < rows; ++i)
            for (int j = 0; j < columns; ++j) values.push_back(test::widen(all[std::size_t(i * all_columns + j)]));
        return values;
    }
};

// Muon's passes and Newton-Schulz on the device.
template <class T> class Orthogonalizer {
public:
    explicit Orthogonalizer(const Padded& shape, std::span<const NewtonSchulzStep> steps = kMuonSteps)
        : shape_(shape), steps_(steps), momentum_(shape.size()), grad_(shape.size()), direction_(shape.size()),
          other_(shape.size()) {
        const std::size_t a = std::size_t(std::min(shape.all_rows, shape.all_columns));
        gram_ = device::Array<T>(a * a);
        polynomial_ = device::Array<T>(a * a);
        append_muon_tiles(tiles_, 0, 0, 0, std::int64_t(shape.size()));
        device_tiles_ = device::Array<MuonTile>(tiles_, nullptr);
        partial_ = device::Array<double>(tiles_.size());
        const std::vector<std::int32_t> start{0, std::int32_t(tiles_.size())};
        start_ = device::Array<std::int32_t>(start, nullptr);
        momentum_.zero(nullptr);
        device::sync(nullptr);
    }
    // O for this gradient; scale: factor of the norm in the division.
    std::span<T> run(const Doubles& gradient, const StepScalars& step, float mu, double norm_factor = 1) {
        const std::vector<float> grad = shape_.template pad<float>(gradient);
        grad_.upload(grad, nullptr);
        scalars_.upload({&step, 1}, nullptr);
        device::sync(nullptr);
        muon_momentum<T>({momentum_.span(), direction_.span(), partial_.span(), grad_.span(), device_tiles_.span(),
                          scalars_.span(), mu}, nullptr);
        range_sums({sums_.span(), partial_.span(), start_.span(), norm_factor * norm_factor}, nullptr);
        muon_normalize<T>({direction_.span(), sums_.span(), device_tiles_.span()}, nullptr);
        return newton_schulz<T>(matmul_, {direction_.span(), other_.span(), gram_.span(), polynomial_.span(), 1,
                                          shape_.all_rows, shape_.all_columns, steps_}, nullptr);
    }
    // NS(U): with mu = 0, U is the gradient.
    Doubles of(const Doubles& u, double norm_factor = 1) { return read(run(u, {.grad_scale = 1}, 0, norm_factor)); }
    template <class E> Doubles read(std::span<E> device) const {
        std::vector<E> host(device.size());
        device::copy_to_host(host.data(), device.data(), device.size_bytes(), nullptr);
        device::sync(nullptr);
        return shape_.crop(host);
    }
    std::span<float> momentum() const { return momentum_.span(); }
    std::span<const MuonTile> tiles() const { return device_tiles_.span(); }
    std::span<const StepScalars> scalars() const { return scalars_.span(); }

private:
    Padded shape_;
    std::span<const NewtonSchulzStep> steps_;
    Matmul matmul_;
    std::vector<MuonTile> tiles_;
    device::Array<float> momentum_, grad_;
    device::Array<T> direction_, other_, gram_, polynomial_;
    device::Array<MuonTile> device_tiles_;
    device::Array<double> partial_, sums_{1};
    device::Array<std::int32_t> start_;
    device::Array<StepScalars> scalars_{1};
};

double largest_difference(const Doubles& got, const Doubles& want) {
    double largest = 0;
    for (std::size_t i = 0; i < want.size(); ++i) largest = std::max(largest, std::fabs(got[i] - want[i]));
    return largest;
}

}  // namespace

TEST_CASE("orthogonalized matrices equal the vectors of the specification", "[kernels][muon]") {
    struct Vector {
        int rows, columns;
        std::span<const NewtonSchulzStep> steps;
        Doubles want;  // the first elements
    };
    const std::vector<Vector> vectors{
        {2, 3, kMuonSteps, {0.033638467, 0.870971571, -0.670603463, -0.564315075, -0.558215062, -0.693033935}},
        {3, 2, kMuonSteps, {-0.635803348, 0.798218693, -0.735938132, -0.074042671, -0.378589414, -0.348773902}},
        {4, 4, kMuonSteps, {0.04802735, 0.398303033, -0.587235814, -0.786452099}},
        {2, 3, kPolarExpress, {-0.005587063, 0.750710802, -0.649548267, -0.595428352, -0.535619469, -0.776602619}},
        {4, 4, kPolarExpress, {-0.043986573, 0.439267335, -0.608615567, -0.799130808}}};
    for (const Vector& vector : vectors) {
        CAPTURE(vector.rows, vector.columns, vector.steps[0].p);
        const bool polar = vector.steps.data() == kPolarExpress.data();
        // Polar Express divides by 1.01 times the norm; its large coefficients cancel and so magnify rounding errors.
        const double norm_factor = polar ? 1.01 : 1, tolerance = polar ? 5e-5 : 2e-6;
        const Doubles u = wave(vector.rows, vector.columns, 0);
        const Doubles got = Orthogonalizer<float>({vector.rows, vector.columns}, vector.steps).of(u, norm_factor);
        CHECK(largest_difference(got, vector.want) < tolerance);
        const Doubles in_bf16 = Orthogonalizer<bf16>({vector.rows, vector.columns}, vector.steps).of(u, norm_factor);
        CHECK(largest_difference(in_bf16, vector.want) < (polar ? 0.12 : 0.05));
    }
    // The norm is divided by: huge gradients, and 0, whose norm counts as 1e-7.
    Orthogonalizer<float> huge({4, 4});
    Doubles u = wave(4, 4, 0);
    for (double& x : u) x *= 1e30;
    CHECK(largest_difference(huge.of(u), vectors[2].want) < 2e-6);
    const Doubles zero(u.size());
    CHECK(huge.of(zero) == zero);
}

TEST_CASE("three updates of Muon equal the vectors of the specification", "[kernels][muon]") {
    const Padded shape(2, 3);
    constexpr float kMu = 0.95f, kLearningRate = 0.01f, kDecay = 0.1f;
    Orthogonalizer<float> muon(shape);
    Doubles initial = wave(2, 3, 5);
    for (double& x : initial) x *= 0.1;
    device::Array<float> weights(shape.size());
    const std::vector<float> padded = shape.pad<float>(initial);
    weights.upload(padded, nullptr);
    const float match_rms = 0.2f * std::sqrt(3.0f);  // max(2, 3)
    device::sync(nullptr);
    const std::vector<Doubles> want{
        {-0.094495128, 0.066934982, -0.085843521, 0.047194282, 0.054319932, -0.068402777},
        {-0.092070424, 0.065563482, -0.084366302, 0.045831338, 0.051837771, -0.067626711},
        {-0.089755524, 0.064438865, -0.083094202, 0.043521511, 0.050566185, -0.065613454}};
    for (int t = 0; t < 3; ++t) {
        CAPTURE(t);
        Doubles gradient = wave(2, 3, 10 + t);
        for (double& x : gradient) x *= 0.01;
        const std::span<float> direction =
            muon.run(gradient, {.adam_step = t + 1, .learning_rate = kLearningRate, .grad_scale = 1}, kMu);
        muon_update<float>({weights.span(), weights.span(), direction, match_rms, muon.tiles(), muon.scalars(), 1,
                            kDecay, {}}, nullptr);
        CHECK(largest_difference(muon.read(weights.span()), want[std::size_t(t)]) < 2e-8);
    }
    CHECK(largest_difference(muon.read(muon.momentum()), {-0.000988771, 0.000452754, -0.000662648, 0.000674472,
                                                          0.000732334, -0.000460528}) < 1e-9);
    // A skipped step changes neither weights nor momentum.
    const Doubles before = muon.read(weights.span()), momentum = muon.read(muon.momentum());
    const std::span<float> direction = muon.run(Doubles(6, NAN), {.grad_scale = NAN, .skip = kSkipNonFinite}, kMu);
    muon_update<float>({weights.span(), weights.span(), direction, match_rms, muon.tiles(), muon.scalars(), 1,
                        kDecay, {}}, nullptr);
    CHECK(muon.read(weights.span()) == before);
    CHECK(muon.read(muon.momentum()) == momentum);
}
