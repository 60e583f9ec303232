// newton_schulz_test.cpp - orthogonalized matrices against published vectors and singular values, and three updates of
// Muon
#include "kernels/matmul/newton_schulz.h"

#include <array>
#include <cmath>
#include <numeric>
#include <vector>

#include "kernels/device/memory.h"
#include "kernels/grad_norm.h"
#include "kernels/muon.h"
#include "test/support/catch.h"
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
        module_sums({sums_.span(), partial_.span(), start_.span(), norm_factor * norm_factor}, nullptr);
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

// Singular values of a (rows, columns) matrix, in descending order: the lengths of its columns once rotations have made
// them orthogonal (one-sided Jacobi).
Doubles singular_values(Doubles m, int rows, int columns) {
    const auto at = [&](int i, int j) -> double& { return m[std::size_t(i * columns + j)]; };
    for (int sweep = 0; sweep < 60; ++sweep)
        for (int p = 0; p < columns; ++p)
            for (int q = p + 1; q < columns; ++q) {
                double pp = 0, qq = 0, pq = 0;
                for (int i = 0; i < rows; ++i) {
                    pp += at(i, p) * at(i, p);
                    qq += at(i, q) * at(i, q);
                    pq += at(i, p) * at(i, q);
                }
                if (std::fabs(pq) <= 1e-15 * std::sqrt(pp * qq)) continue;
                const double zeta = (qq - pp) / (2 * pq);
                const double t = (zeta >= 0 ? 1 : -1) / (std::fabs(zeta) + std::sqrt(1 + zeta * zeta));
                const double c = 1 / std::sqrt(1 + t * t), s = c * t;
                for (int i = 0; i < rows; ++i) {
                    const double x = at(i, p), y = at(i, q);
                    at(i, p) = c * x - s * y;
                    at(i, q) = s * x + c * y;
                }
            }
    Doubles values;
    for (int j = 0; j < columns; ++j) {
        double sum = 0;
        for (int i = 0; i < rows; ++i) sum += at(i, j) * at(i, j);
        values.push_back(std::sqrt(sum));
    }
    std::ranges::sort(values, std::greater());
    values.resize(std::size_t(std::min(rows, columns)));
    return values;
}

}  // namespace

TEST_CASE("orthogonalized matrices equal the vectors of the specification", "[kernels][muon]") {
    struct Vector {
        int rows, columns;
        std::span<const NewtonSchulzStep> steps;
        Doubles want, singular;  // want: the first elements
    };
    const std::vector<Vector> vectors{
        {2, 3, kMuonSteps, {0.033638467, 0.870971571, -0.670603463, -0.564315075, -0.558215062, -0.693033935},
         {1.106269, 1.046878}},
        {3, 2, kMuonSteps, {-0.635803348, 0.798218693, -0.735938132, -0.074042671, -0.378589414, -0.348773902},
         {1.134229, 0.752984}},
        {4, 4, kMuonSteps, {0.04802735, 0.398303033, -0.587235814, -0.786452099},
         {1.134115, 1.093337, 1.050401, 0.771598}},
        {2, 3, kPolarExpress, {-0.005587063, 0.750710802, -0.649548267, -0.595428352, -0.535619469, -0.776602619},
         {1.132332, 0.973586}},
        {4, 4, kPolarExpress, {-0.043986573, 0.439267335, -0.608615567, -0.799130808}, {}}};
    for (const Vector& vector : vectors) {
        CAPTURE(vector.rows, vector.columns, vector.steps[0].p);
        const bool polar = vector.steps.data() == kPolarExpress.data();
        // Polar Express divides by 1.01 times the norm; its large coefficients cancel and so magnify rounding errors.
        const double norm_factor = polar ? 1.01 : 1, tolerance = polar ? 5e-5 : 2e-6;
        const Doubles u = wave(vector.rows, vector.columns, 0);
        const Doubles got = Orthogonalizer<float>({vector.rows, vector.columns}, vector.steps).of(u, norm_factor);
        CHECK(largest_difference(got, vector.want) < tolerance);
        const Doubles singular = singular_values(got, vector.rows, vector.columns);
        CHECK(largest_difference(singular, vector.singular) < tolerance);
        const Doubles in_bf16 = Orthogonalizer<bf16>({vector.rows, vector.columns}, vector.steps).of(u, norm_factor);
        CHECK(largest_difference(in_bf16, vector.want) < (polar ? 0.12 : 0.05));
    }
}

TEST_CASE("singular values are near 1 for random, rank-1, tiny and huge matrices; 0 stays 0", "[kernels][muon]") {
    const auto [rows, columns] = GENERATE(table<int, int>({{16, 16}, {16, 64}, {64, 16}}));
    CAPTURE(rows, columns);
    const Doubles random = test::widen(test::normal<float>(std::size_t(rows * columns), 3, 1));
    const auto times = [&](double factor) {
        Doubles values = random;
        for (double& x : values) x *= factor;
        return values;
    };
    Orthogonalizer<float> fp32({rows, columns});
    Orthogonalizer<bf16> in_bf16({rows, columns});
    for (const double factor : {1.0, 1e-4, 1e30}) {
        CAPTURE(factor);
        for (const auto& [got, slack] : {std::pair(fp32.of(times(factor)), 0.0), {in_bf16.of(times(factor)), 0.06}})
            // A singular value far below the others of its matrix needs more steps.
            for (const double value : singular_values(got, rows, columns)) {
                CHECK(value < 1.15 + slack);
                if (rows != columns) CHECK(value > 0.68 - slack);
            }
    }
    Doubles rank_one;
    for (int i = 0; i < rows; ++i)
        for (int j = 0; j < columns; ++j) rank_one.push_back(random[std::size_t(i)] * random[std::size_t(j)]);
    const Doubles singular = singular_values(fp32.of(rank_one), rows, columns);
    CHECK(singular[0] > 0.68);
    CHECK(singular[0] < 1.15);
    CHECK(singular[1] < 1e-3);
    const Doubles zero(random.size());
    CHECK(fp32.of(zero) == zero);
    CHECK(in_bf16.of(zero) == zero);
    // Below 1e-7 the norm counts as 1e-7: no division by 0.
    CHECK(largest_difference(fp32.of(times(1e-38)), zero) < 1e-20);
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
