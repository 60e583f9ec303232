// auto_run_test.cpp - real runs that choose what no flag gives
#include "test/support/pattern.h"
#include "test/support/run_support.h"

using namespace test;

TEST_CASE("a run of text and a length chooses the rest, on any number of ranks, and a resume keeps it", "[run][auto]") {
    const int ranks = GENERATE(1, 2);
    const TrainingFolder folder;
    const Texts flags{"-i", folder.path("train_*.bin"), "-j", folder.path("val_*.bin"), "--threads", "1",
                      "--tune-file", folder.path("choices.json")};
    const auto run = [&](const std::string& out, const Texts& more) {
        return folder.run_on(ranks, flags + Texts{"-o", folder.path(out)} + more).exits(0);
    };
    const std::string said = run("a", {"--max-tokens", "30k"});
    CHECK_THAT(said, Contains("\nchosen for ") && Contains("  --init custom:l=") &&
                     Contains("  expected: a validation loss near ") && Contains("  --optimizer muon: "));
    const auto options = [&] { return llmc::parse_json(read_bytes(folder.path("a/options.json"))); };
    const auto chosen = options();
    for (const char* const flag : {"init", "seq-len", "total-batch-tokens", "optimizer", "lr", "lr-schedule", "dtype",
                                   "val-every", "val-tokens", "keep-best", "stop-after", "beta2", "shuffle"})
        CHECK(chosen[flag] != "auto");
    CHECK(chosen["optimizer"] == "muon");
    const auto start = folder.log("a", "start").at(0);
    CHECK(start["chosen"]["init"].get<std::string>().find("expected loss") != std::string::npos);
    CHECK(start["options"]["lr"] == chosen["lr"]);
    CHECK(start["expected_nats_per_byte"] > 0);

    run("b", {"--max-tokens", "30k"});  // with the speed that the first run has stored
    CHECK(folder.losses("b") == folder.losses("a"));

    // A file with a nonsense speed is not believed.
    edit(folder.path("choices.json"), [](std::string& text) {
        for (auto at = text.find("\"seconds\": "); at != text.npos; at = text.find("\"seconds\": ", at + 1))
            text.replace(at + 11, text.find_first_of(",}\n", at) - at - 11, "1e300");
    });
    CHECK(!run("c", {"--max-tokens", "30k"}).empty());

    const std::string resumed = run("a", {"-y", "auto", "--max-tokens", "60k"});
    CHECK_THAT(resumed, !Contains("chosen"));
    auto expected = chosen;
    expected["max-tokens"] = 60000, expected["resume"] = "auto";
    CHECK(options() == expected);
}

TEST_CASE("a dry run says speed, length, cost and disk, also of another machine", "[run][auto]") {
    const TrainingFolder folder;
    const auto plan = [&](const Texts& more) {
        return folder.run(Texts{"--dry-run", "-i", folder.path("train_*.bin")} + more).exits(0);
    };
    CHECK_THAT(plan({"--max-tokens", "1M", "--price", "2"}),
               Contains(" tokens/s, measured here\n") && Contains("  length: 1.00M tokens, ") &&
               Contains(" passes over the text\n") && Contains("  cost: ") && Contains(" at 2 an hour\n") &&
               Contains("  disk: a checkpoint takes "));
    CHECK(Pattern("tokens/s: ([0-9.]+[kM]) tokens,.*\n  length: \\1 tokens, 1:00 ")
              .in(plan({"--max-minutes", "1", "-e", "custom:l=2,h=2,c=32"})));
    const Texts other{"-e", "gpt3:c768", "--ranks", "8", "--memory", "80G", "-d", "524288", "-x", "1000"};
    CHECK_THAT(folder.run(Texts{"--dry-run", "--speed", "4M"} + other).exits(0),
               Contains("  speed: 4.00M tokens/s, as --speed says\n") && Contains("  length: 524M tokens, 2:11 ") &&
               Contains("  links: a rank sends and receives ") && Contains("81559") && Contains("--dtype=bf16") &&
               Contains("  text for one pass: dev/data/prepare fineweb --shards 7\n"));
    CHECK_THAT(folder.run(Texts{"--dry-run", "--peak-tflops", "989"} + other).exits(0),
               Contains("49 % of the peak, as measured on an H200\n"));
    CHECK_THAT(folder.run({"--dry-run", "-e", "d12", "--ranks", "8"}).exits(0), Contains("  length: not known\n"));
    CHECK_THAT(folder.run(Texts{"--dry-run", "--ranks", "8", "--memory", "80G", "--max-minutes", "60"}).exits(2),
               Contains("error: --init is auto in a plan for another machine; expected") && Contains("--peak-tflops"));
    CHECK_THAT(folder.run(Texts{"--dry-run", "--speed", "9", "-i", folder.path("train_*.bin")}).exits(2),
               Contains("error: --speed is 9; expected the model that has this speed"));
    CHECK_THAT(folder.run(Texts{"--speed", "9", "-i", folder.path("train_*.bin")}).exits(2),
               Contains("error: --speed is set without --dry-run"));
}
