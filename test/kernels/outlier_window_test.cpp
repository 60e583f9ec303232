// outlier_window_test.cpp - steps whose loss or norm is far above those of the last 128 updates, compared with a plain
// window in long double
#include <deque>

#include "kernels/grad_norm.h"
#include "test/support/support.h"

using namespace kernels;
using namespace test;

namespace {

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
        RankSums row{};
        row.loss_sum = loss * double(valid_targets), row.valid_targets = double(valid_targets), row.norm = norm * norm;
        const auto rows = on_device(std::vector{row});
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
