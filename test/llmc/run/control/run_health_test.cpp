// run_health_test.cpp - when the losses of a run are reported as unhealthy
#include "llmc/run/control/run_health.h"

#include <cmath>

#include "llmc/weights/step_folder.h"
#include "test/support/run_support.h"

using namespace llmc;
using namespace test;

namespace {

// Steps of this loss, of which the last has this number. Returns how many of them warned.
int steps(RunHealth& health, std::int64_t& number, int count, double loss) {
    int warnings = 0;
    kernels::StepScalars scalars{};
    scalars.loss = loss;
    for (int i = 0; i < count; ++i) warnings += health.step(++number, scalars).has_value();
    return warnings;
}

}  // namespace

TEST_CASE("a loss that stays high for 50 steps after the warm-up is reported once", "[health]") {
    struct Part {
        int steps;
        double loss;
        int warnings;
    };
    const auto after = [](const RunHealth::Settings& settings, const std::vector<Part>& parts) {
        RunHealth health(settings);
        std::int64_t number = 0;
        for (const Part& part : parts) {
            CAPTURE(number, part.loss);
            CHECK(steps(health, number, part.steps, part.loss) == part.warnings);
        }
        return health.state();
    };
    const double random = std::log(257.0);
    after({.vocabulary = 257, .warmup_steps = 10},  // above ln(V) + 1
          {{10, 9, 0}, {49, random + 1.01, 0}, {1, random + 0.99, 0}, {49, 9, 0}, {1, NAN, 1}, {200, 9, 0}});
    after({.vocabulary = 50257}, {{1, 2, 0}, {100, 3.99, 0}, {50, 4.01, 1}});  // above twice the lowest
    for (const auto& [loss, warnings] : {std::pair(random, 1), {0.96 * random, 1}, {0.94 * random, 0}}) {
        after({.vocabulary = 257, .starts_trained = true}, {{1, loss, warnings}, {40, random, 0}});  // as if untrained
        after({.vocabulary = 257}, {{1, loss, 0}});
    }
    CHECK(after({.vocabulary = 257}, {{1, 1e-4, 0}, {100, 0.9, 0}}).high_steps == 0);  // a batch learned by heart
    std::vector<Part> falling;  // of other data, which the model learns
    for (double loss = 14; loss > 6; loss -= 0.1) falling.push_back({1, loss, 0});
    CHECK(after({.vocabulary = 257}, falling).high_steps == 0);
}

TEST_CASE("the best validation, overfitting and a loss that is not finite are reported", "[health]") {
    const bool in_order = GENERATE(false, true);
    RunHealth health({.vocabulary = 257, .in_order = in_order});
    std::int64_t number = 0;
    const auto validate = [&](double training, double validation) {
        steps(health, number, 10, training);
        return health.validation(number, validation);
    };
    CHECK_FALSE(health.validation(0, 5.5).best);  // nothing before it
    CHECK(validate(4, 4).best);
    CHECK(validate(3, 3).best);
    CHECK(health.state().best_validation_after == 20);
    CHECK_FALSE(validate(2.9, 3.02).best);  // within 1 %
    CHECK(health.state().validations_since_best == 1);
    for (const double training : {2.8, 2.7}) CHECK_FALSE(validate(training, 3.1).warning);
    const auto third = validate(2.6, 3.2);
    REQUIRE(third.warning);
    CHECK_THAT(third.warning->text, Contains("the last 3 validations are worse than the best one (3 after step 20)"));
    CHECK((third.warning->text.find("--shuffle") != std::string::npos) == in_order);
    CHECK_FALSE(validate(2.5, 3.3).warning);
    CHECK(validate(2.5, 2.9).best);
    CHECK(health.state().validations_since_best == 0);
    RunHealth on_purpose({.vocabulary = 257, .may_overfit = true});
    for (int i = 0; i < 9; ++i) {
        steps(on_purpose, number, 10, 2 - 0.1 * i);
        CHECK_FALSE(on_purpose.validation(number, 2 + 0.1 * i).warning);
    }

    RunHealth worse({.vocabulary = 257});  // both losses rise: that is no overfitting
    number = 0;
    worse.validation(0, 2);
    for (int i = 0; i < 9; ++i) {
        steps(worse, number, 10, 2 + 0.1 * i);
        CHECK_FALSE(worse.validation(number, 2 + 0.1 * i).warning);
    }
    CHECK(worse.validation(number, NAN).warning);
    CHECK(worse.state().validation_failed);
    CHECK_FALSE(worse.validation(number, INFINITY).warning);
    worse.validation(number, 2.5);
    CHECK_FALSE(worse.state().validation_failed);
}

TEST_CASE("ten failed steps, or as many without an update as the window has, end a run", "[health]") {
    const auto first_failure = [](std::int32_t skip, int every, std::int32_t otherwise) {
        RunHealth health({});
        kernels::StepScalars scalars{};
        for (int number = 1; number <= 300; ++number) {
            scalars.skip = number % every == 0 ? otherwise : skip;
            health.step(number, scalars);
            if (health.failure()) return std::pair(number, health.diverged());
        }
        return std::pair(0, false);
    };
    using enum kernels::Skip;
    CHECK(first_failure(kSkipNonFinite, 1000, kNoSkip) == std::pair(10, true));
    CHECK(first_failure(kSkipNonFinite, 10, kNoSkip) == std::pair(0, false));
    constexpr int kMost = RunHealth::kMostStepsWithoutUpdate;
    CHECK(first_failure(kSkipOutlier, 1000, kNoSkip) == std::pair(+kMost, false));
    CHECK(first_failure(kSkipOutlier, 100, kNoSkip) == std::pair(0, false));
    CHECK(first_failure(kSkipOutlier, 2, kSkipNoTargets) == std::pair(2 * kMost - 1, false));
}

TEST_CASE("after a divergence the newest checkpoint of a good model is named", "[health]") {
    const ScratchFolder folder;
    const std::string out = (folder / "run").string();
    RunHealth health({.vocabulary = 257, .output_dir = out, .total_steps = 100});
    CHECK(health.advice_after_divergence() == "start again with a lower --lr or more --warmup-steps");
    for (int step = 10; step <= 40; step += 10) {
        const auto checkpoint = step_folder(out, step);
        std::filesystem::create_directories(checkpoint);
        write_bytes(checkpoint / "config.json", "{}");
        make_checksums_right(checkpoint);
        health.validation(step, step < 30 ? 3 : 300);
    }
    std::filesystem::create_directories(step_folder(out, 9));  // incomplete
    CHECK_FALSE(health.divergence());
    CHECK_THAT(health.advice_after_divergence(),
               Contains("such as --resume " + out + "/step_00000010 --max-steps 100 "));
}
