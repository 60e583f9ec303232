// resume_further_test.cpp - completed runs that are trained further, and runs that are resumed on other data
#include "test/support/run_support.h"

using namespace test;

TEST_CASE("a completed run says how to train it further, and what its learning rate does", "[run][resume]") {
    const TrainingFolder folder;
    // Runs the command that follows this text in the output.
    const auto follow = [&](const std::string& output, const std::string& text) {
        const auto at = output.find(text);
        REQUIRE(at != std::string::npos);
        const std::string rest = output.substr(at + text.size());
        return folder.command({"bash", "-c", rest.substr(0, rest.find('\n'))}).exits(0);
    };
    const std::string before = "to train further from before the cool-down: ",
                      first = "changed: learning rate at step ",
                      rises = "to train further (the learning rate rises from 0.0025 to 0.01): ";
    const std::string whole =
        folder.run(twelve_steps(folder, "wsd") + Texts{"-k", "wsd", "-n", "3", "--cooldown-fraction", "0.5"}).exits(0);
    CHECK_THAT(follow(whole, before), Contains(folder.path("wsd/step_00000006")) && !Contains(first) &&
                                          Contains("step 24/24"));
    CHECK(fs::exists(folder.step("wsd-further", 24)));
    CHECK(folder.log("wsd-further", "step")[0]["lr"] == 1e-2f);
    const std::string again = folder.run({"-o", folder.path("wsd"), "-y", "auto"}).exits(0);
    CHECK_THAT(again, Contains("completed all 12 steps; " + before) && Contains("-o " + folder.path("wsd-further2")));
    CHECK_THAT(follow(again, rises), Contains(first + "13: 0.001 -> 0.01;"));
    const Texts cool_down{"-k", "wsd", "-n", "0", "--cooldown-fraction"};
    CHECK_THAT(folder.run(twelve_steps(folder, "none") + cool_down + Texts{"0.05"}).exits(0),
               Contains("note: there is no cool-down: --cooldown-fraction 0.05 of 12 steps") &&
                   Contains("to train further: "));
    CHECK_THAT(folder.run(twelve_steps(folder, "one") + cool_down + Texts{"0.5"}).exits(0),
               Contains("to train further (no checkpoint from before the cool-down is left, and the learning rate ") &&
                   !Contains("note: there is no"));
}

TEST_CASE("epochs count passes over the training data of the run, also after others", "[run][resume]") {
    const TrainingFolder folder;
    const auto again = [&](const Texts& more) {
        return folder.run(Texts{"-o", folder.path("out"), "-y", "auto"} + more).exits(0);
    };
    // 375 rows, 30 in a step
    folder.run(twelve_steps(folder, "out") + Texts{"-x", "0", "--epochs", "1", "-d", "480", "-v", "0"}).exits(0);
    CHECK(folder.losses("out").size() == 12);
    // 43 rows, of which 3 passes have 129: 4 steps.
    const Texts others{"--allow-new-data", "-i", folder.path("val_*.bin"), "--epochs", "3"};
    CHECK_THAT(again(others), Contains("training: 16 steps of ") && Contains("  144 targets more at the end of the "));
    CHECK_THAT(again({}), Contains("training: 16 steps of "));
    CHECK_THAT(again({"--epochs", "6"}), Contains("training: 20 steps of "));
    CHECK(folder.losses("out").size() == 20);
}

TEST_CASE("a resumed run says how its shards or their weights differ", "[run][resume]") {
    const TrainingFolder folder;
    const std::string a = folder.path("train_0.bin"), b = folder.path("val_0.bin"), c = folder.path("c.bin");
    ShardBytes(std::vector<std::uint16_t>(100, 1), 257, 256).write(c);
    folder.train({"-x", "1", "-o", folder.path("out"), "-i", a + ":1", b + ":7", "-j", a, b});
    folder.train({"-x", "1", "-o", folder.path("sets"), "-j", a, b});
    const Texts fresh{"--allow-new-data", "-i"};
    for (const auto& [more, says] : std::vector<std::pair<Texts, std::string>>{
             {{"-i", a + ":7", b + ":1"}, "error: the training data is \"" + a + ":7\" (87.5 %), \"" + b +
                                              ":1\" (12.5 %); expected \"" + a + ":1\" (12.5 %), "},
             {{"-i", a, b}, "error: the training data is without weights; expected \"" + a + ":1\" (12.5 %), "},
             {{"-i", a, b, c}, "error: the number of training shards is 3; expected 2, as"},
             {{"-i", a}, "error: the number of training shards is 1; expected 2, as"},
             {fresh + Texts{a, b}, "training data: other weights, read from the first row; lowest training loss, "},
             {fresh + Texts{a + ":7", b + ":1"}, "validation data: other weights\n"},
             {fresh + Texts{b + ":7", a + ":1"}, "training data: the same shards in another order, "},
             {fresh + Texts{a + ":1", c + ":7"}, "training data: different shards, "},
             {{"-j", a}, "validation data: another number of shards\n"},
             {{"-y", folder.step("sets", 1), "-j", "{" + a + "," + b + "}"}, "other sets of the same shards\n"}}) {
        const Texts from{"-x", "2", "-y", folder.step("out", 1), "-o", folder.path("new")};
        CHECK_THAT(folder.run(from + more).output, Contains(says));
        fs::remove_all(folder.path("new"));
    }
}
