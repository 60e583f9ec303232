// newton_schulz_test.cpp - orthogonalized matrices against published vectors
#include "kernels/matmul/newton_schulz.h"

#include "kernels/grad_norm.h"
#include "kernels/muon.h"
#include "test/support/support.h"

using namespace kernels;

namespace {

using Doubles = std::vector<double>;

// sin(0.7 i^2 + 1.3 i), row-major
Doubles wave(int rows, int columns) {
    Doubles values;
    for (int i = 0; i < rows * columns; ++i) values.push_back(std::sin(0.7 * i * i + 1.3 * i));
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

// NS(U), after Muon's passes without momentum: its direction is then the gradient.
template <class T> Doubles orthogonalized(const Padded& shape, const Doubles& u) {
    std::vector<MuonTile> tiles;
    append_muon_tiles(tiles, 0, 0, 0, std::int64_t(shape.size()));
    const std::size_t a = std::size_t(std::min(shape.all_rows, shape.all_columns));
    const auto device_tiles = test::on_device(tiles);
    const auto start = test::on_device(std::vector<std::int32_t>{0, std::int32_t(tiles.size())});
    const auto grad = test::on_device(shape.pad<float>(u));
    const auto scalars = test::on_device(std::vector<StepScalars>{{.grad_scale = 1}});
    const auto momentum = test::on_device(std::vector<float>(shape.size()));
    const auto direction = test::poisoned<T>(shape.size()), other = test::poisoned<T>(shape.size());
    const auto gram = test::poisoned<T>(a * a), polynomial = test::poisoned<T>(a * a);
    const auto partial = test::poisoned<double>(tiles.size()), sums = test::poisoned<double>(1);
    muon_momentum<T>({momentum.span(), direction.span(), partial.span(), grad.span(), device_tiles.span(),
                      scalars.span(), 0}, nullptr);
    range_sums({sums.span(), partial.span(), start.span()}, nullptr);
    muon_normalize<T>({direction.span(), sums.span(), device_tiles.span()}, nullptr);
    Matmul matmul;
    const std::span<T> got = newton_schulz<T>(matmul, {direction.span(), other.span(), gram.span(), polynomial.span(),
                                                       1, shape.all_rows, shape.all_columns, kMuonSteps}, nullptr);
    std::vector<T> all(got.size());
    device::copy_to_host(all.data(), got.data(), got.size_bytes(), nullptr);
    device::sync(nullptr);
    return shape.crop(all);
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
        Doubles want;  // the first elements
    };
    const std::vector<Vector> vectors{
        {2, 3, {0.033638467, 0.870971571, -0.670603463, -0.564315075, -0.558215062, -0.693033935}},
        {3, 2, {-0.635803348, 0.798218693, -0.735938132, -0.074042671, -0.378589414, -0.348773902}},
        {4, 4, {0.04802735, 0.398303033, -0.587235814, -0.786452099}}};
    for (const Vector& vector : vectors) {
        CAPTURE(vector.rows, vector.columns);
        const Padded shape(vector.rows, vector.columns);
        const Doubles u = wave(vector.rows, vector.columns);
        CHECK(largest_difference(orthogonalized<float>(shape, u), vector.want) < 2e-6);
        CHECK(largest_difference(orthogonalized<bf16>(shape, u), vector.want) < 0.05);
    }
    // The norm is divided by: huge gradients, and 0, whose norm counts as 1e-7.
    Doubles u = wave(4, 4);
    for (double& x : u) x *= 1e30;
    CHECK(largest_difference(orthogonalized<float>({4, 4}, u), vectors[2].want) < 2e-6);
    const Doubles zero(u.size());
    CHECK(orthogonalized<float>({4, 4}, zero) == zero);
}
