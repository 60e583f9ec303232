// catch2.cpp - the Catch2 features that train_gpt2 uses; scripts/install_deps.sh compiles it
//
// library:  Catch2
// expected: version 2.13 or 3
// packages: catch2
// version:  CATCH_VERSION_MAJOR.CATCH_VERSION_MINOR.CATCH_VERSION_PATCH
#include "test/support/catch.h"

#include <stdexcept>

TEMPLATE_TEST_CASE("a probe", "[probe]", float, double) {
    const auto [first, second] = GENERATE(table<int, int>({{1, 2}, {3, 4}}));
    CAPTURE(first, second);
    CHECK(TestType(first) + 1 == Approx(second).margin(1e-6));
    CHECK_THAT("a text", test::Contains("text") && !test::StartsWith("text"));
    CHECK_THROWS_WITH(throw std::runtime_error("a text"), test::EndsWith("text"));
}

void add() {
    test::add_case("another", "[probe]", {__FILE__, __LINE__}, [] { SUCCEED(); });
}
