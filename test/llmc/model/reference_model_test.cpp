// reference_model_test.cpp - the reference model against finite differences and known properties
#include "test/support/reference_model.h"

#include <cmath>
#include <limits>
#include <random>

#include "kernels/device/types.h"
#include "test/support/catch.h"

using namespace test;
using llmc::ModelConfig;
using llmc::ParameterTable;

namespace {

constexpr double kRounding = std::numeric_limits<double>::epsilon();

// Random everywhere except in the padding, and far from the initial values, where many gradients are small.
std::vector<double> random_parameters(const ParameterTable& table, unsigned seed) {
    std::mt19937 engine(seed);
    std::normal_distribution<double> normal(0, 1);
    std::vector<double> parameters(std::size_t(table.elements()));
    for (const auto& spec : table.tensors())
        for (std::int64_t i = 0; i < spec.rows_in_files * spec.columns; ++i)
            parameters[std::size_t(spec.offset + i)] = 0.3 * normal(engine) +
                                                       (spec.is_vector() && spec.name.ends_with("weight"));
    return parameters;
}

struct Tiny {
    ParameterTable table{ModelConfig{2, 2, 16, 6, 11}};
    std::vector<double> parameters = random_parameters(table, 3);
    std::vector<int> tokens{1, 5, 5, 10, 0, 3, 7, 2, 9, 5}, targets{5, 5, 10, 0, 3, 7, -1, 9, 5, -1};
    ReferenceBatch batch{tokens, targets, 2, 5};
};

// The derivative of the mean loss along `direction`, by a fourth-order formula with step h.
double difference(const Tiny& tiny, const std::vector<double>& direction, double h) {
    const auto at = [&](double step) {
        std::vector<double> moved = tiny.parameters;
        for (std::size_t i = 0; i < moved.size(); ++i) moved[i] += step * direction[i];
        return reference_loss(tiny.table, moved, tiny.batch).mean();
    };
    return (8 * (at(h) - at(-h)) - (at(2 * h) - at(-2 * h))) / (12 * h);
}

double dot(const std::vector<double>& a, const std::vector<double>& b) {
    double sum = 0;
    for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
    return sum;
}

}  // namespace

TEST_CASE("the reference's gradient is the derivative of its loss, per tensor and per element", "[reference]") {
    const Tiny tiny;
    const auto result = reference_gradient(tiny.table, tiny.parameters, tiny.batch);
    CHECK(result.loss.sum == reference_loss(tiny.table, tiny.parameters, tiny.batch).sum);
    std::mt19937 engine(17);
    std::normal_distribution<double> normal(0, 1);
    const auto check = [&](const std::vector<double>& direction) {
        const double h = 1e-3, coarse = difference(tiny, direction, 2 * h), fine = difference(tiny, direction, h);
        // The truncation error is bounded by the change from 2 h to h; the rounding error of the loss (about a hundred
        // operations deep) is divided by h.
        const double tolerance = std::fabs(coarse - fine) + 100 * kRounding * result.loss.mean() / h;
        CHECK(std::fabs(dot(result.gradient, direction) - fine) <= tolerance);
        CHECK(tolerance < 1e-7);
    };
    for (const auto& spec : tiny.table.tensors()) {
        CAPTURE(spec.name);
        std::vector<double> direction(tiny.parameters.size());
        for (std::int64_t i = 0; i < spec.rows_in_files * spec.columns; ++i)
            direction[std::size_t(spec.offset + i)] = normal(engine) / std::sqrt(double(spec.size()));
        check(direction);
        for (int sample = 0; sample < 3; ++sample) {
            std::fill(direction.begin(), direction.end(), 0);
            direction[std::size_t(spec.offset) + engine() % std::size_t(spec.rows_in_files * spec.columns)] = 1;
            check(direction);
        }
    }
}

TEST_CASE("the reference is causal, and its probabilities sum to one", "[reference]") {
    Tiny tiny;
    const auto before = reference_logits(tiny.table, tiny.parameters, tiny.batch);
    REQUIRE(before.size() == 10 * 11);
    tiny.tokens[3] = 4;  // row 3 of the first sequence
    const auto after = reference_logits(tiny.table, tiny.parameters, tiny.batch);
    for (int row = 0; row < 10; ++row) {
        bool same = true;
        for (int v = 0; v < 11; ++v) same &= before[std::size_t(row * 11 + v)] == after[std::size_t(row * 11 + v)];
        CHECK(same == (row != 3 && row != 4));
    }
    // Over all targets of one position the probabilities exp(-loss) sum to one.
    double total = 0;
    for (int target = 0; target < 11; ++target) {
        std::vector<int> targets(10, kernels::kIgnoreTarget);
        targets[8] = target;
        const auto loss = reference_loss(tiny.table, tiny.parameters, {tiny.tokens, targets, 2, 5});
        CHECK(loss.valid_targets == 1);
        total += std::exp(-loss.sum);
    }
    CHECK(std::fabs(total - 1) < 20 * kRounding * 11);
}
