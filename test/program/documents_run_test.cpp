// documents_run_test.cpp - --document-mask in whole runs: what they say and compute, and what is refused at a resume
#include "test/support/run_support.h"

using namespace test;

TEST_CASE("a run within documents says so, is evaluated like it, and resumes bit-identical", "[run][documents]") {
    const TrainingFolder folder;
    std::mt19937 engine(1);
    std::vector<std::uint16_t> ids{256};  // documents of at most 11 tokens, which count from a letter
    for (int size = 1; ids.size() < 4000; ++size) {
        if (size == 11 || engine() % 8 == 0) ids.push_back(256), size = 0;
        else ids.push_back(ids.back() == 256 ? std::uint16_t('a' + engine() % 20) : std::uint16_t(ids.back() + 1));
    }
    ShardBytes(ids, 257, 256).write(folder.path("train_0.bin"));
    ids.resize(700);
    ShardBytes(ids, 257, 256).write(folder.path("val_0.bin"));
    const Texts six{"-e", "custom:l=2,h=2,c=32,t=32", "-x", "6", "-n", "3", "-v", "6", "-o"};
    const Texts masks{folder.path("out"), "--document-mask", "--mask-document-start"};
    const std::string output = folder.run(folder.flags(six + masks)).exits(0);
    CHECK_THAT(output, Contains("documents: attention within them, ") &&
                           Contains(" in a row of the first shard, of at most 11 tokens;") &&
                           Contains("reaches the positions from 11 to 15, which are not trained\n"));
    const auto start = folder.log("out", "start").at(0);
    CHECK(start["document_mask"] == true);
    CHECK(start["longest_document"] == 11);
    CHECK((start["pair_share"] > 0.2 && start["pair_share"] < 0.7));

    folder.run(folder.flags(six + Texts{folder.path("whole_rows")})).exits(0);
    CHECK(folder.log("whole_rows", "start").at(0)["document_mask"] == false);
    CHECK(folder.losses("whole_rows")[0] != folder.losses("out")[0]);

    const auto plan = [&](const Texts& shards) {
        return folder.run(Texts{"--dry-run", "-x", "6", "-t", "16", "-i"} + shards).exits(0);
    };
    const std::string short_ones = folder.path("train_0.bin"), long_one = folder.path("long.bin");
    ShardBytes(std::vector<std::uint16_t>(4000, 'a'), 257, 256).write(long_one);
    CHECK_THAT(plan({short_ones}), Contains("  --document-mask on: ") && Contains(" documents start in a sequence\n"));
    CHECK_THAT(plan({short_ones + ":0.95", long_one + ":0.05"}), Contains("--document-mask on: "));
    CHECK_THAT(plan({short_ones + ":0.05", long_one + ":0.95"}), Contains("--document-mask off"));

    const Texts evaluated{"--eval-only", "-v", "250", "-e", folder.path("out"), "-o"};
    folder.run({"--eval-only", "-e", folder.path("out"), "-j", folder.path("val_0.bin"), "--keep-best", "-o",
                folder.path("same")})
        .exits(0);  // with the mask and the rows of its run
    const auto losses = [&](const char* of) { return folder.log(of, "val").back()["loss"].get<double>(); };
    CHECK(std::fabs(losses("same") - losses("out")) < 1e-6);
    folder.run({"--eval-only", "-e", folder.path("out"), "-j", folder.path("val_0.bin"), "--dtype", "bf16", "-o",
                folder.path("bf16")}).exits(0);
    CHECK_THAT(folder.log("bf16", "start").at(0)["attention"].get<std::string>(), !Contains("not cuDNN"));  // not tried
    const std::string without = folder.run(folder.flags(evaluated + Texts{folder.path("other")})).exits(0);
    CHECK_THAT(without, Contains("note: the model of --init was trained with --document-mask"));
    CHECK(std::fabs(losses("other") - losses("out")) > 1e-4);

    edit(folder.step("out", 6) / "trainer_state.json", [](std::string& text) { text.erase(0, 1); });
    make_checksums_right(folder.step("out", 6));
    CHECK_THAT(folder.run(folder.flags(evaluated + Texts{folder.path("unknown"), "--document-mask=auto"})).exits(0),
               Contains("note: -t, --optimizer, --document-mask and --mask-document-start of --init's run are not "
                        "known: "));

    const Texts again{"-y", folder.step("out", 3).string(), "-o"};
    folder.run(folder.flags(again + Texts{folder.path("again")})).exits(0);
    CHECK(folder.model("again", 6) == folder.model("out", 6));
    CHECK_THAT(folder.run(folder.flags(again + Texts{folder.path("off"), "--document-mask=off"})).exits(2),
               Contains("error: --document-mask is false; expected true, as in the run that --resume continues"));
}

TEST_CASE("a run within documents says that its text has none", "[run][documents]") {
    const TrainingFolder folder;
    ShardBytes(counting(200), 257, 256).write(folder.path("train_0.bin"));
    const std::string plan = folder.run(folder.flags({"-x", "2", "--document-mask", "--dry-run"})).exits(0);
    CHECK_THAT(plan, Contains("note: --document-mask has no effect on ") &&
                         Contains("its first 200 tokens have no end of text, 256\n") &&
                         Contains("documents: attention within them, 100 % of a row's pairs"));
}
