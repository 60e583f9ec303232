// hellaswag_run_test.cpp - HellaSwag in whole runs: when it is scored
#include "test/support/hellaswag_support.h"
#include "test/support/run_support.h"

using namespace test;

namespace {

// In the language of TrainingFolder, where letters mostly follow alphabetically, as in the correct ending.
std::vector<HellaSwagBytes::Example> examples_of_letters(int count) {
    std::mt19937 engine(5);
    std::vector<HellaSwagBytes::Example> examples(static_cast<std::size_t>(count));
    for (HellaSwagBytes::Example& example : examples) {
        const auto first = std::uint16_t('a' + engine() % 8);
        example.context = {first, std::uint16_t(first + 1)};
        example.right = std::uint16_t(engine() % 4);
        for (std::uint16_t e = 0; e < 4; ++e) {
            std::uint16_t letter = first + 1;
            for (int i = 0; i < 4; ++i) {
                letter = e == example.right ? std::uint16_t(letter + 1) : std::uint16_t('a' + engine() % 20);
                example.endings[e].push_back(letter);
            }
        }
    }
    return examples;
}

}  // namespace

TEST_CASE("a run scores its model on HellaSwag, as a run that only evaluates it", "[run]") {
    const TrainingFolder folder;
    HellaSwagBytes(examples_of_letters(60), 257, 256).write(folder.path("examples.bin"));
    const std::string output = folder.train({"-x", "60", "-d", "128", "-v", "0", "--hellaswag",
                                             folder.path("examples.bin"), "--hellaswag-every", "25", "-n", "25", "-o",
                                             folder.path("out")});
    const auto scores = folder.log("out", "hellaswag");
    CHECK(numbers(scores, "step") == std::vector<double>{25, 50, 60});
    CHECK(scores.back()["examples"] == 60);
    CHECK(scores.back()["acc_norm"].get<double>() > 0.8);
    CHECK_THAT(output, Contains("HellaSwag: 60 examples") && Contains("HellaSwag acc_norm"));
    const auto state = llmc::parse_json(read_bytes(fs::path(folder.path("out")) / "step_00000025/trainer_state.json"));
    CHECK(state["tasks"]["hellaswag"]["pending"] == false);
    // The saved model has the same scores, also without shards.
    folder.run({"--eval-only", "--hellaswag", folder.path("examples.bin"), "-e", folder.path("out"), "-b", "1", "-t",
                "16", "-o", folder.path("alone")}).exits(0);
    for (const char* const key : {"acc", "acc_norm", "examples"})
        CHECK(folder.log("alone", "hellaswag").at(0)[key] == scores.back()[key]);
    CHECK(folder.log("alone", "val").empty());
}

TEST_CASE("a resumed run warns if a HellaSwag file or validation shard has the same name but new contents", "[run]") {
    const TrainingFolder folder;
    HellaSwagBytes(examples_of_letters(3), 257, 256).write(folder.path("examples.bin"));
    const auto run = [&](const char* steps) {
        return folder.train({"-x", steps, "--hellaswag", folder.path("examples.bin"), "-y", "auto", "-o",
                             folder.path("out")});
    };
    run("1");
    CHECK_THAT(run("2"), !Contains("different examples") && !Contains("different shards"));
    HellaSwagBytes(examples_of_letters(4), 257, 256).write(folder.path("examples.bin"));
    CHECK_THAT(run("3"), Contains("  changed: HellaSwag: different examples\n") && !Contains("different shards"));
    ShardBytes(std::vector<std::uint16_t>(500, 97), 257, 256).write(folder.path("val_0.bin"));
    CHECK_THAT(run("4"),
               Contains("  changed: validation data: different shards\n") && !Contains("different examples"));
}
