// did_you_mean_test.cpp - suggested names, and refused arguments
#include "llmc/base/did_you_mean.h"

#include "test/support/scratch_folder.h"

using namespace llmc;

TEST_CASE("the suggested name is near, or starts with the given text", "[did_you_mean]") {
    const std::vector<std::string> known{"optimizer", "optimizer-state", "lr", "lr-schedule", "warmup-steps", "a"};
    CHECK(did_you_mean("optimiser", known) == "did you mean optimizer?");
    CHECK(did_you_mean("otpimizer", known) == "did you mean optimizer?");
    CHECK(did_you_mean("warmup", known) == "did you mean warmup-steps?");
    CHECK(did_you_mean("opt", known) == "did you mean optimizer or optimizer-state?");  // the shorter one first
    CHECK(did_you_mean("steps", known) == "did you mean warmup-steps?");  // the same word
    CHECK(did_you_mean("state-of-lr", known) == "did you mean lr, lr-schedule or optimizer-state?");
    CHECK(did_you_mean("lrr", known) == "did you mean lr?");
    for (const char* other : {"", "b", "momentum", "xyz", "wz"}) CHECK(did_you_mean(other, known).empty());
    CHECK(did_you_mean(std::string(100000, 'a'), known).empty());
    CHECK(did_you_mean("x", {}).empty());
}

TEST_CASE("arguments that are no flags are refused", "[did_you_mean]") {
    const auto refusal = [](const std::string& word) {
        return test::error_of([&] { refuse_argument(word, {"--name", "-n"}, "tool --help"); }, Blame::input);
    };
    const std::string expected = "expected one of those that tool --help shows";
    CHECK(refusal("--nmae=3") == "the flag \"--nmae\" is unknown; " + expected + "; did you mean --name?");
    CHECK(refusal("--na_me") == refusal("--na-me").replace(14, 1, "_"));
    CHECK(refusal("-name") == "the flag \"-name\" is unknown; " + expected + "; did you mean --name?");
    for (const char* flag : {"-x", "---", "--=", "--"})
        CHECK_THAT(refusal(flag), test::EndsWith(expected));
    for (const char* word : {"\u2013name", "\u2014name", "\u2212n"})
        CHECK_THAT(refusal(word), test::EndsWith("is preceded by a long dash; expected hyphens; type the flag as "
                                                  "--flag or -f"));
    for (const char* word : {"", "-", "a.bin"})
        CHECK_THAT(refusal(word), test::EndsWith("is not understood; expected flags only; see tool --help; quote a "
                                                  "glob"));
}
