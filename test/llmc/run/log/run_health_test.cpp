// run_health_test.cpp - when the losses of a run are reported as unhealthy
#include "llmc/run/log/run_health.h"

#include "test/support/catch.h"

using namespace llmc;
using test::Contains;

namespace {

// Steps of this loss, of which the last has this number. Returns how many of them warned.
int steps(RunHealth& health, std::int64_t& number, int count, double loss) {
    int warnings = 0;
    for (int i = 0; i < count; ++i) warnings += health.step(++number, loss).has_value();
    return warnings;
}

}  // namespace

TEST_CASE("a loss that stays high for 50 steps after the warm-up is reported once", "[health]") {
    const double random = std::log(257.0);
    {  // above ln(V) + 1
        RunHealth health(257, 10);
        std::int64_t number = 0;
        CHECK(steps(health, number, 10, 9) == 0);  // warm-up
        CHECK(steps(health, number, 49, random + 1.01) == 0);
        CHECK(steps(health, number, 1, random + 0.99) == 0);
        CHECK(steps(health, number, 49, 9) == 0);
        CHECK(steps(health, number, 1, NAN) == 1);
        CHECK(steps(health, number, 200, 9) == 0);
    }
    {  // above twice the lowest
        RunHealth health(50257, 0);
        std::int64_t number = 0;
        CHECK(steps(health, number, 1, 2) == 0);
        CHECK(steps(health, number, 100, 3.99) == 0);
        CHECK(steps(health, number, 50, 4.01) == 1);
        CHECK(health.good_after() == 0);
    }
    {  // a batch that is learned by heart
        RunHealth health(257, 0);
        std::int64_t number = 0;
        CHECK(steps(health, number, 1, 1e-4) == 0);
        CHECK(steps(health, number, 100, 0.9) == 0);
        CHECK(health.state().high_steps == 0);
    }
}

TEST_CASE("the best validation, overfitting and a loss that is not finite are reported", "[health]") {
    RunHealth health(257, 0);
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
    CHECK_FALSE(validate(2.5, 3.3).warning);
    CHECK(validate(2.5, 2.9).best);
    CHECK(health.good_after() == number);
    CHECK(health.state().validations_since_best == 0);
    RunHealth on_purpose(257, 0, true);
    for (int i = 0; i < 9; ++i) {
        steps(on_purpose, number, 10, 2 - 0.1 * i);
        CHECK_FALSE(on_purpose.validation(number, 2 + 0.1 * i).warning);
    }

    RunHealth worse(257, 0);  // both losses rise: that is no overfitting
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
