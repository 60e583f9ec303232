// newton_schulz_test.cpp - orthogonalized matrices against published vectors (the passes of Muon: operations/muon.cpp)
#include "kernels/matmul/newton_schulz.h"

#include <array>
#include <cmath>
#include <vector>

#include "kernels/device/memory.h"
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

// sin(0.7 i^2 + 1.3 i), row-major, divided by `factor` times the norm of the matrix
Doubles wave(int rows, int columns, double factor) {
    Doubles values;
    double squares = 0;
    for (int i = 0; i < rows * columns; ++i) {
        values.push_back(std::sin(0.7 * i * i + 1.3 * i));
        squares += values.back() * values.back();
    }
    for (double& x : values) x /= factor * std::sqrt(squares);
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

template <class T>
Doubles orthogonalized(const Doubles& matrix, const Padded& shape, std::span<const NewtonSchulzStep> steps) {
    const std::size_t least = std::size_t(std::min(shape.all_rows, shape.all_columns));
    const auto direction = test::on_device(shape.pad<T>(matrix)), other = test::poisoned<T>(shape.size()),
               gram = test::poisoned<T>(least * least), polynomial = test::poisoned<T>(least * least);
    Matmul matmul;
    const std::span<T> result =
        newton_schulz<T>(matmul, {direction.span(), other.span(), gram.span(), polynomial.span(), 1, shape.all_rows,
                                  shape.all_columns, steps}, nullptr);
    std::vector<T> host(result.size());
    device::copy_to_host(host.data(), result.data(), result.size_bytes(), nullptr);
    device::sync(nullptr);
    return shape.crop(host);
}

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
        const Doubles u = wave(vector.rows, vector.columns, norm_factor);
        const Padded shape(vector.rows, vector.columns);
        CHECK(largest_difference(orthogonalized<float>(u, shape, vector.steps), vector.want) < tolerance);
        CHECK(largest_difference(orthogonalized<bf16>(u, shape, vector.steps), vector.want) < (polar ? 0.12 : 0.05));
    }
    CHECK(orthogonalized<float>(Doubles(16), {4, 4}, kMuonSteps) == Doubles(16));
}
