// grad_norm_test.cpp - exactness of the gradient norm (random values: operations/grad_norm.cpp), and the decisions of a
// step compared with the formulas of token-exact accumulation
#include "kernels/grad_norm.h"
#include "test/support/support.h"

using namespace kernels;
using namespace test;

namespace {

struct Norms {
    std::vector<double> partial;
    std::vector<bf16> rounded;
};
enum class Copy { none, rounded };
Norms norms_of(const std::vector<float>& values, const std::vector<NormTile>& tiles, Copy copy) {
    const auto partial = poisoned<double>(tiles.size());
    const auto rounded = poisoned<bf16>(copy == Copy::rounded ? values.size() : 0);
    const auto device_values = on_device(values);
    const auto device_tiles = on_device(tiles);
    squared_norms({.partial = partial.span(), .values = device_values.span(), .tiles = device_tiles.span(),
                   .rounded = rounded.span()}, nullptr);
    return {partial.download(nullptr), rounded.download(nullptr)};
}

// One rank's row of sums.
RankSums row_of(double loss_sum, std::int64_t valid_targets, double norm) {
    return {.loss_sum = loss_sum, .valid_targets = double(valid_targets), .small_tokens = 0, .small_batches = 0,
            .norm = norm, .small_norms = 0, .unused = {}};
}

// One step's inputs; run() calls step_scalars on the previous state and returns the new scalars.
struct Step {
    std::int64_t positions = 1024, valid_targets = 1024;
    double loss_sum = 1000;
    double norm = 0.25;  // squared
    float learning_rate = 6e-4f, max_norm = 0, beta1 = 0.9f, beta2 = 0.95f;
    double second_power = 1;

    StepScalars run(const StepScalars& before = {}) const {
        auto scalars = on_device(std::vector<StepScalars>{before});
        const auto rows = on_device(std::vector{row_of(loss_sum, valid_targets, norm)});
        auto totals = poisoned<RankSums>(1);
        auto window = on_device(std::vector<OutlierWindow>(1));
        step_scalars({scalars.span(), window.span(), totals.span(), rows.span(), positions, learning_rate,
                      max_norm, beta1, beta2, second_power},
                     nullptr);
        return scalars.download(nullptr)[0];
    }
};

}  // namespace

TEST_CASE("squared_norms with rounding is bit-identical to separate passes", "[grad_norm]") {
    // The last tile ends within a pack; elements between tiles are not touched.
    const std::int64_t size = GENERATE(1, 3, 4, 5, 15, 16, 17, 31, 1023, 4096, 4100, 16383);
    const std::vector<NormTile> tiles{{16, 16384}, {16416, 48}, {20000, size}};
    CAPTURE(size);
    auto values = normal<float>(std::size_t(20000 + size + 9), 3, 0.01);
    CHECK(same_bits(norms_of(values, tiles, Copy::rounded).partial, norms_of(values, tiles, Copy::none).partial));

    // Ties to either side, near-ties, the largest numbers, infinities, subnormal numbers, zeros and NaN: each at every
    // index of a pack.
    const std::uint32_t special[] = {0x3f808000, 0x3f818000, 0x3f807fff, 0x3f808001, 0x7f7f7fff,
                                     0x7f7f8000, 0x7f7fffff, 0x7f800000, 0x00000001, 0x00008000,
                                     0x00018000, 0x00000000, 0x7f800001, 0x7fc00000, 0x7fffffff};
    std::vector<bf16> want(values.size(), bf16{0xffff});
    for (std::size_t i = 0; i < values.size(); ++i)
        values[i] = std::bit_cast<float>(special[i % 15] | std::uint32_t(i / 15 % 2) << 31);
    for (const NormTile& tile : tiles)
        for (std::int64_t i = tile.first; i < tile.first + tile.size; ++i)
            want[std::size_t(i)] = bf16_from_float(values[std::size_t(i)]);
    CHECK(same_bits(norms_of(values, tiles, Copy::rounded).rounded, want));
}

TEST_CASE("a dense step is scaled by exactly 1", "[grad_norm]") {
    Step step;
    step.positions = step.valid_targets = GENERATE(as<std::int64_t>{}, 1, 3, 524288, (std::int64_t(1) << 53) - 1);
    const StepScalars got = step.run();
    CHECK(got.grad_scale == 1.0f);
    CHECK(got.clip == 1.0f);
    CHECK(got.grad_norm == 0.5f);
    CHECK(got.loss == 1000.0 / double(step.positions));
}

TEST_CASE("bias corrections depend on the number of updates", "[grad_norm]") {
    const std::int64_t made = GENERATE(as<std::int64_t>{}, 0, 1, 2, 9, 99, 9999, std::int64_t(1) << 40);
    CAPTURE(made);
    Step step;
    StepScalars before{};
    before.adam_step = made;
    const StepScalars got = step.run(before);
    CHECK(got.adam_step == made + 1);
    const double first = -1 / std::expm1(double(made + 1) * std::log(double(step.beta1)));
    const double second = -1 / std::expm1(double(made + 1) * std::log(double(step.beta2)));
    CHECK(std::fabs(got.first_correction - first) <= 0.51 * ulp<float>(first));
    CHECK(std::fabs(got.second_correction - second) <= 0.51 * ulp<float>(second));
    step.beta1 = 0;
    CHECK(step.run(before).first_correction == 1.0f);
    // Two updates whose second moments decay by beta2^4 and beta2^0.5, after `made` others.
    StepScalars after = before;
    for (const double power : {4.0, 0.5}) {
        step.second_power = power;
        after = step.run(after);
    }
    CHECK(after.second_surplus == 2.5);
    const double powers = -1 / std::expm1((double(made) + 4.5) * std::log(double(step.beta2)));
    CHECK(std::fabs(after.second_correction - powers) <= 0.51 * ulp<float>(powers));
    step.valid_targets = 0;  // a step without an update
    CHECK(step.run(after).second_surplus == 2.5);
}
