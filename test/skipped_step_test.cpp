// skipped_step_test.cpp - the real program on data in which the targets of one whole step do not count
#include <catch2/catch.hpp>

#include "test/run_support.h"

using namespace test;

TEST_CASE("a step without targets is skipped, said and counted, and the run goes on", "[run]") {
    const Workshop shop;
    constexpr int kPositions = 128, kSkipped = 8;
    std::mt19937 engine(1);
    std::vector<std::uint16_t> ids;
    for (int i = 0; i <= 12 * kPositions; ++i) ids.push_back(std::uint16_t('a' + engine() % 20));
    std::fill_n(ids.begin() + kSkipped * kPositions, kPositions, std::uint16_t(256));  // ends of text, whose successors are masked
    ShardBytes(ids, 257, 256).write(shop.path("train_0.bin"));
    const auto result = shop.run(shop.flags({"-d", "128", "-x", "12", "-v", "0", "--mask-document-start", "-o", shop.path("out")}));
    CAPTURE(result.output);
    REQUIRE(result.exit_code == 0);
    const auto steps = shop.log("out", "step"), skips = shop.log("out", "skip");
    REQUIRE(steps.size() == 12);
    const auto& skipped = steps[kSkipped];
    CHECK(skipped["valid_tokens"] == 0);
    for (const char* unknown : {"loss", "grad_norm", "noise_scale_seq"}) CHECK(skipped[unknown].is_null());
    CHECK(steps[kSkipped + 1]["loss"].is_number());
    REQUIRE(skips.size() == 1);
    CHECK(skips[0]["step"] == kSkipped);
    CHECK(skips[0]["skipped_steps"] == 1);
    CHECK_THAT(result.output, Catch::Contains("step 9/12 | update skipped: no targets (1 so far)"));
    // The noise scale, known so far in tokens, is not known in sequences of a step that has no tokens in them.
    CHECK(skipped["noise_scale_tokens"].is_number());
    const auto line = result.output.substr(result.output.find("step 9/12 | loss"));
    CHECK_THAT(line.substr(0, line.find('\n')), Catch::EndsWith(" | noise n/a"));
}
