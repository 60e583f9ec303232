// grad_norm_test.cpp - exactness of the gradient norm (random values: operations/grad_norm.cpp); the decisions of a
// step compared with the formulas of token-exact accumulation; and steps whose loss or norm is far above those of the
// last 128 updates, compared with a plain window in long double
#include <deque>

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

constexpr int kHeld = OutlierWindow::kSize;
constexpr double kRounding = 0x1p-53;

struct ZLimits {
    double loss = 0, norm = 0;
};

// Runs consecutive steps. Scaling by powers of two and taking the root of a square are exact, so the window sees
// exactly the given losses and norms.
class WindowSteps {
public:
    explicit WindowSteps(ZLimits limits = {}, const OutlierWindow& window = {})
        : limits_(limits), window_(on_device(std::vector<OutlierWindow>{window})) {}

    StepScalars step(double loss, double norm, std::int64_t valid_targets = 64) {
        const auto rows = on_device(std::vector{row_of(loss * double(valid_targets), valid_targets, norm * norm)});
        step_scalars({.scalars = scalars_.span(), .window = window_.span(), .totals = totals_.span(),
                      .rank_sums = rows.span(), .positions = 64, .learning_rate = 1e-3f, .max_norm = 1,
                      .beta1 = 0.9f, .beta2 = 0.95f, .max_loss_z = limits_.loss, .max_norm_z = limits_.norm}, nullptr);
        return scalars_.download(nullptr)[0];
    }
    void fill(double loss, double norm) {
        for (int i = 0; i < kHeld; ++i) step(loss, norm);
    }
    OutlierWindow window() const { return window_.download(nullptr)[0]; }

private:
    ZLimits limits_;
    device::Array<OutlierWindow> window_;
    device::Array<StepScalars> scalars_ = on_device(std::vector<StepScalars>(1));
    device::Array<RankSums> totals_ = poisoned<RankSums>(1);
};

// The formula of the contract, and a bound of the rounding error in double.
struct ExactZ {
    double z = NAN, error = 0;
    ExactZ(const std::deque<double>& held, double x) {
        if (held.size() < kHeld) return;
        long double mean = 0, squares = 0, largest = 0;
        for (const double y : held) mean += y / static_cast<long double>(kHeld), largest = std::max(largest, fabsl(y));
        for (const double y : held) squares += (y - mean) * (y - mean);
        const long double deviation = std::max(std::sqrt(squares / kHeld), 1e-6L * fabsl(mean));
        z = double((x - mean) / deviation);
        // Rounding of two sums of 128 numbers: the mean, in units of the deviation, and the squares.
        error = kRounding * ((kHeld + 4) * double(largest / deviation) + (kHeld + 8) * std::fabs(z));
    }
    bool agrees(double other) const {
        return std::isnan(z) || std::isinf(z) ? std::isnan(other) || other == z : std::fabs(other - z) <= error;
    }
};

std::vector<double> by_age(const OutlierWindow& window, const double (&values)[kHeld]) {
    std::vector<double> all;
    for (int i = 0; i < window.count; ++i)
        all.push_back(values[(window.next - window.count + i + kHeld) % kHeld]);
    return all;
}

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

TEST_CASE("outliers are detected from the last 128 updates, like in a plain window", "[grad_norm]") {
    const ZLimits limits{.loss = 6, .norm = 4};
    WindowSteps steps(limits);
    std::deque<double> losses, norms;
    std::mt19937 engine(1);
    std::normal_distribution<double> noise;
    int skipped[4] = {}, updates = 0, late_updates = 0;
    for (int i = 0; i < 460; ++i) {
        double loss = 3 + 0.1 * noise(engine), norm = 1 + 0.05 * noise(engine);
        std::int64_t valid_targets = 64;
        const bool high = i < 40 || i > 150;  // two of them occur before the window is full
        if (high && i % 17 == 16) loss += 5;
        if (high && i % 19 == 18) norm += 1;
        if (i % 23 == 22) loss -= 1, norm -= 0.4;  // a value far below is not an outlier
        if (i % 29 == 28) loss = i % 2 ? NAN : INFINITY;
        if (i % 31 == 30) norm = i % 2 ? NAN : INFINITY;
        if (i % 37 == 36) loss = 0, norm = 0, valid_targets = 0;
        CAPTURE(i, loss, norm);
        const ExactZ loss_z(losses, valid_targets ? loss : NAN), norm_z(norms, valid_targets ? norm : NAN);
        const StepScalars got = steps.step(loss, norm, valid_targets);
        CHECK((loss_z.agrees(got.loss_z) && norm_z.agrees(got.norm_z)));
        const int skip = valid_targets == 0                                ? kSkipNoTargets
                         : !std::isfinite(loss) || !std::isfinite(norm)    ? kSkipNonFinite
                         : loss_z.z > limits.loss || norm_z.z > limits.norm ? kSkipOutlier
                                                                           : kNoSkip;
        REQUIRE(got.skip == skip);
        ++skipped[skip];
        if (skip == kNoSkip) {
            ++updates;
            if (losses.size() == kHeld) losses.pop_front(), norms.pop_front(), ++late_updates;
            losses.push_back(loss), norms.push_back(norm);
        }
        CHECK(got.adam_step == updates);
        CHECK(got.skipped_steps == i + 1 - updates);
        if (i % 16 != 15) continue;
        const OutlierWindow window = steps.window();
        CHECK(same_bits(by_age(window, window.losses), std::vector<double>(losses.begin(), losses.end())));
        CHECK(same_bits(by_age(window, window.norms), std::vector<double>(norms.begin(), norms.end())));
    }
    CHECK(late_updates > kHeld);  // every entry of the window was written twice
    for (const int count : skipped) CHECK(count >= 8);
}

TEST_CASE("after 128 equal steps rounding alone does not make a step an outlier", "[grad_norm]") {
    WindowSteps steps({.loss = 6, .norm = 6});
    steps.fill(0.1, 0.7);
    const OutlierWindow equal = steps.window();
    const StepScalars same = steps.step(0.1, 0.7);
    CHECK(same.skip == kNoSkip);
    CHECK(std::fabs(same.loss_z) < kHeld * kRounding / 1e-6);
    const auto skip = [&](double factor) {
        const int of_loss = WindowSteps({.loss = 6}, equal).step(0.1 * factor, 0.7).skip;
        CHECK(WindowSteps({.norm = 6}, equal).step(0.1, 0.7 * factor).skip == of_loss);
        return of_loss;
    };
    CHECK(skip(1 + 5.9e-6) == kNoSkip);
    CHECK(skip(1 + 6.1e-6) == kSkipOutlier);
    // A window of zeros has no scale: no step is an outlier.
    WindowSteps zeros({.loss = 6, .norm = 6});
    zeros.fill(0, 0);
    const StepScalars first = zeros.step(1, 1);
    CHECK((first.skip == kNoSkip && std::isnan(first.loss_z) && std::isnan(first.norm_z)));
}
