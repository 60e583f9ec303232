// checkpoint_folder_test.cpp - which checkpoints a run keeps, and the one named best
#include <cmath>

#include "test/support/run_support.h"

using namespace test;

TEST_CASE("--keep-checkpoints counts only checkpoints that can be resumed", "[run][resume]") {
    const TrainingFolder folder;
    const auto run = [&](const char* steps) {
        folder.train({"-x", steps, "-n", "2", "-v", "0", "-y", "auto", "-o", folder.path("out"), "--keep-checkpoints",
                      "3"});
    };
    using Steps = std::vector<std::int64_t>;
    for (const char* const steps : {"2", "4", "6"}) run(steps);
    fs::remove(folder.step("out", 4) / "manifest.json");  // for example a copy that was not finished
    run("8");
    fs::remove(folder.step("out", 6) / "optimizer-00000-of-00001.safetensors");
    run("10");
    CHECK(folder.saved_steps("out") == Steps{2, 4, 6, 8, 10});
    run("12");
    CHECK(folder.saved_steps("out") == Steps{4, 8, 10, 12});
    CHECK(names_in(folder.path("out")).size() == 4 + 2);  // with log and options
}

TEST_CASE("the checkpoint of the lowest validation loss is kept and named best; --stop-after ends the run",
          "[run][resume][ranks][mpi]") {
    const int ranks = GENERATE(1, 2);
    const TrainingFolder folder;
    const auto best = [&] { return fs::read_symlink(folder.path("out/best")).string(); };
    const auto run = [&](const Texts& more) {
        return folder.run_on(ranks, folder.flags({"-b", "2", "-z", "2", "-v", "2", "--val-tokens", "256", "--tune=off",
                                                  "--keep-best", "--keep-checkpoints", "1", "-y", "auto", "-o",
                                                  folder.path("out")}) + more).exits(0);
    };
    const Texts again{"-o", folder.path("out"), "-y", "auto"};
    run({"--max-minutes", "1e-12"});
    CHECK(best() == "step_00000000");
    run({"--max-minutes", "0", "-x", "5", "-u", "0"});
    CHECK(best() == "step_00000005");
    fs::remove(folder.path("out/best"));  // as if it had been killed before it made the link
    const std::string output = run({"-x", "30", "--lr", "1", "--stop-after", "3"});
    CHECK_THAT(output, Contains("done: no lower validation loss (--stop-after), 5 steps in ") &&
                           Contains(" after step 5/30, " + folder.path("out/best") + "\n") &&
                           Contains(" -y auto --stop-after 0\n"));
    CHECK(folder.log("out", "end").back()["reason"] == "no lower validation loss (--stop-after)");
    CHECK(names_in(folder.path("out")) == std::set<std::string>{"best", "log.jsonl", "options.json", "step_00000005",
                                                                "step_00000010"});
    CHECK(best() == "step_00000005");
    CHECK_THAT(folder.run_on(ranks, again).exits(0), Contains(", 0 steps in "));
    CHECK_THAT(folder.run_on(ranks, again + Texts{"--stop-after", "4"}).exits(0), Contains(", 2 steps in "));
    const auto generate = [&](const char* model) {
        const Texts words{"-e", folder.path(model), "--prompt", "ab", "-n", "1", "--threads", "1"};
        return folder.run(words, "generate").exits(0);
    };
    CHECK(generate("out/best").find("lowest") == std::string::npos);
    CHECK_THAT(generate("out"), Contains("note: step_00000005 has the lowest validation loss: pass " +
                                         folder.path("out/best")));
    const double lowest = std::ranges::min(numbers(folder.log("out", "val"), "loss"));
    folder.train({"-e", folder.path("out/best"), "--eval-only", "--val-tokens", "256", "--tune=off", "-b", "2", "-o",
                  folder.path("again")});
    CHECK(std::fabs(folder.log("again", "val")[0]["loss"].get<double>() - lowest) < 1e-6);
}

TEST_CASE("the lowest validation loss starts again with other targets, and best follows it", "[run][resume]") {
    const TrainingFolder folder;
    const Texts out{"-o", folder.path("out"), "-y", "auto"};
    folder.train(out + Texts{"-x", "40", "-v", "20", "--val-tokens", "64", "--keep-best", "--keep-checkpoints", "1",
                             "--stop-after", "2"});
    const std::string started = " start again\n";
    const auto resume = [&](const Texts& more) { return folder.run(out + more).exits(0); };
    // A byte that the model has not seen, whose loss is higher than those before.
    ShardBytes(std::vector<std::uint16_t>(700, 200), 257, 256).write(folder.path("other.bin"));
    CHECK_THAT(resume({"-x", "42", "-j", folder.path("other.bin"), "-v", "100"}),
               Contains("changed: validation data: different shards") && Contains(started));
    CHECK(fs::read_symlink(folder.path("out/best")) == "step_00000042");
    // 1000 and 2000 tokens are all of them.
    CHECK_THAT(resume({"-x", "43", "-v", "1"}), !Contains(started));
    CHECK_THAT(resume({"-x", "44", "--val-tokens", "128"}), Contains(started));
    CHECK_THAT(resume({"-x", "45", "--val-spread=off"}), Contains(started));
    CHECK_THAT(resume({"-x", "46", "--val-tokens", "1000"}), Contains(started));
    CHECK_THAT(resume({"-x", "47", "--val-tokens", "2000", "--val-spread"}), !Contains(started));
    fs::copy(folder.path("other.bin"), folder.path("same.bin"));
    CHECK_THAT(resume({"-x", "48", "-j", folder.path("same.bin")}), !Contains(started));
}
