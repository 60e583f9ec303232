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
std::vector<double> partials_of(const std::vector<float>& values) {
    std::vector<NormTile> tiles;
    append_tiles(tiles, 0, std::int64_t(values.size()));
    return norms_of(values, tiles, Copy::none).partial;
}
double sum(const std::vector<double>& values) {
    double total = 0;
    for (const double x : values) total += x;
    return total;
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

TEST_CASE("the loss of a step weights every valid token equally", "[grad_norm]") {
    // Mean losses and token counts of two ranks with four micro-batches each.
    const double means[8] = {2, 3, 4, 5, 6, 1, 3, 8};
    const int counts[8] = {59, 60, 14, 11, 12, 268, 133, 6};
    Step step;
    step.positions = 2 * 4 * 268;
    step.valid_targets = 0;
    step.loss_sum = 0;
    for (int i = 0; i < 8; ++i) {
        step.valid_targets += counts[i];
        step.loss_sum += means[i] * counts[i];
    }
    REQUIRE(step.valid_targets == 563);
    REQUIRE(step.loss_sum == 1196);
    // The accumulated gradient of a model in which every token's gradient is its loss: weight 1 / positions each.
    step.norm = sum(partials_of({float(1196.0 / 2144)}));

    const StepScalars got = step.run();
    CHECK(got.valid_targets == 563);
    CHECK(std::fabs(got.loss - 2.124333925) <= 1e-9);
    CHECK(std::fabs(got.grad_scale - 3.808170515) <= 1e-6 * 3.808170515);
    CHECK(std::fabs(got.grad_scale * 1196.0 / 2144 - 2.124333925) <= 1e-6 * 2.124333925);
    CHECK(std::fabs(got.grad_norm - 2.124333925) <= 1e-6 * 2.124333925);
    // wrong results: means of means, and a wrong factor of the world size
    for (const double wrong : {4.0, 2.359279700, 1.062166963}) CHECK(std::fabs(got.loss - wrong) > 0.1);

    // Sums of two ranks, and the means that a published run reported for them, with the counts above.
    for (const auto& [sum, mean] : {std::pair{-13.8838529586792, -0.0246604848}, {1.0207021236419678, 0.0018129700}}) {
        step.loss_sum = sum;
        CHECK(std::fabs(step.run().loss - mean) <= 1e-10);
    }

    // All targets of the second rank are ignored.
    step.valid_targets = 144;
    step.loss_sum = 118 + 180 + 56 + 55;
    CHECK(std::fabs(step.run().loss - 2.840277778) <= 1e-9);
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

TEST_CASE("clipping acts on the gradient of the mean over valid targets", "[grad_norm]") {
    Step step;
    step.positions = 4096;
    step.valid_targets = 1024;
    step.norm = 0.09 + 0.07;  // norm 0.4, of the mean 1.6
    step.max_norm = GENERATE(0.0f, -1.0f, 0.5f, 1.0f, 1.59f, 1.61f, 10.0f);
    CAPTURE(step.max_norm);
    const StepScalars got = step.run();
    const double clip = step.max_norm > 0 ? std::min(1.0, step.max_norm / (1.6 + 1e-6)) : 1.0;
    CHECK(got.grad_norm == 1.6f);
    CHECK(std::fabs(got.clip - clip) <= ulp<float>(clip) / 2);
    CHECK(std::fabs(got.grad_scale - 4 * clip) <= ulp<float>(4 * clip) / 2);
    CHECK((got.clip < 1) == (step.max_norm > 0 && step.max_norm < 1.6f));
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

TEST_CASE("an invalid step is skipped and counted, and its reason recorded", "[grad_norm]") {
    Step good;
    const StepScalars before = good.run();
    REQUIRE(before.skip == kNoSkip);
    REQUIRE(before.adam_step == 1);

    Step bad = good;
    bad.learning_rate = 5e-4f;
    int reason = kSkipNonFinite;
    const int what = GENERATE(0, 1, 2, 3, 4, 5);
    CAPTURE(what);
    if (what == 0) { bad.valid_targets = 0; bad.loss_sum = 0; bad.norm = 0; reason = kSkipNoTargets; }
    if (what == 1) bad.norm = NAN;
    if (what == 2) bad.norm = INFINITY;
    if (what == 3) bad.loss_sum = NAN;
    if (what == 4) bad.loss_sum = -INFINITY;
    if (what == 5) bad.norm = sum(partials_of({1.0f, -INFINITY}));
    bad.max_norm = 1;
    const StepScalars skipped = bad.run(before);
    CHECK(skipped.skip == reason);
    CHECK(skipped.adam_step == 1);
    CHECK(skipped.skipped_steps == 1);
    CHECK(skipped.learning_rate == 5e-4f);
    CHECK(skipped.valid_targets == bad.valid_targets);
    CHECK(std::isfinite(skipped.grad_norm) == (what == 3 || what == 4));
    CHECK(std::isfinite(skipped.loss) == (what == 1 || what == 2 || what == 5));
    if (what == 0) CHECK(std::isnan(skipped.loss));

    const StepScalars next = good.run(skipped);
    CHECK(next.skip == kNoSkip);
    CHECK(next.adam_step == 2);
    CHECK(next.skipped_steps == 1);
}

TEST_CASE("the ranks' sums of a step are added in rank order", "[grad_norm]") {
    const int ranks = GENERATE(1, 2, 3, 8);
    std::vector<RankSums> rows;
    RankSums want = row_of(0, 0, 0);
    for (int rank = 0; rank < ranks; ++rank) {
        const RankSums row{.loss_sum = 0.1 * (rank + 1), .valid_targets = double(100 + rank),
                           .small_tokens = 3.0 * rank, .small_batches = 2, .norm = 1.0 / (3 + rank),
                           .small_norms = 4.0 / (rank + 7), .unused = {}};
        rows.push_back(row);
        want.loss_sum += row.loss_sum, want.valid_targets += row.valid_targets, want.small_tokens += row.small_tokens;
        want.small_batches += row.small_batches, want.norm += row.norm, want.small_norms += row.small_norms;
    }
    auto scalars = on_device(std::vector<StepScalars>(1));
    const auto device_rows = on_device(rows);
    auto totals = poisoned<RankSums>(1);
    auto window = on_device(std::vector<OutlierWindow>(1));
    step_scalars({scalars.span(), window.span(), totals.span(), device_rows.span(), 1000, 1e-3f, 0, 0.9f, 0.95f},
                 nullptr);
    CHECK(same_bits(totals.download(nullptr), std::vector{want}));
    const StepScalars step = scalars.download(nullptr)[0];
    CHECK(step.valid_targets == std::int64_t(want.valid_targets));
    CHECK(step.loss == want.loss_sum / want.valid_targets);
    CHECK(step.grad_norm == float(1000 / want.valid_targets * std::sqrt(want.norm)));
}

TEST_CASE("sums over ranges of tiles are accumulated with a factor; counts leave the rest of a row", "[grad_norm]") {
    const std::vector<double> partial{1, 2, 4, 8, 16};
    const std::vector<std::int32_t> start{0, 2, 2, 5};
    const auto device_partial = on_device(partial);
    const auto device_start = on_device(start);
    auto sums = poisoned<double>(3);
    range_sums({.sums = sums.span(), .partial = device_partial.span(), .range_start = device_start.span()}, nullptr);
    CHECK(sums.download(nullptr) == std::vector<double>{3, 0, 28});
    range_sums({.sums = sums.span(), .partial = device_partial.span(), .range_start = device_start.span(),
                .factor = 0.5, .accumulate = true}, nullptr);
    CHECK(sums.download(nullptr) == std::vector<double>{4.5, 0, 42});
    auto row = poisoned<RankSums>(1);
    RankSums want = row.download(nullptr)[0];
    put_counts(row.span().data(), {.valid_targets = 3, .small_tokens = (std::int64_t(1) << 40) + 1,
                                   .small_batches = 2}, nullptr);
    want.valid_targets = 3, want.small_tokens = 0x1p40 + 1, want.small_batches = 2;
    CHECK(same_bits(row.download(nullptr), std::vector{want}));
}
