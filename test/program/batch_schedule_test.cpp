// batch_schedule_test.cpp - runs whose steps change their size, by --batch-schedule or by another -d at a resume
#include "test/support/run_support.h"

using namespace test;

namespace {

// Of ten steps the first four have 192 tokens, the next three 384, and the last three 768.
const Texts kSchedule{"--batch-schedule", "0:192,700:384,1900:768"};

Texts ten_steps(const TrainingFolder& folder, const std::string& out, const Texts& more) {
    return folder.flags(Texts{"-e", "custom:l=2,h=2,c=32,t=16", "-b", "1", "-x", "10", "-u", "3", "-v", "4", "-n", "1",
                              "--val-tokens", "64", "--eps", "1e-3", "--tune=off", "--shuffle", "-o",
                              folder.path(out)} + more);
}

}  // namespace

TEST_CASE("a run with a batch schedule continues with the same bits from every step", "[run][batch_schedule]") {
    const auto [ranks, flags] = GENERATE(table<int, Texts>({
        {1, {}},
        {2, {"-z", "1", "--dtype", "bf16", "--stochastic-rounding"}},
        {3, {"-z", "2"}},
        {2, {"-z", "1", "--optimizer", "muon"}},
        {1, {"--skip-norm-z", "4", "-k", "wsd", "--batch-beta-scaling"}},
    }));
    CAPTURE(ranks, flags);
    const TrainingFolder folder;
    folder.run_on(ranks, ten_steps(folder, "whole", flags + kSchedule)).exits(0);
    const std::vector<double> tokens{192, 192, 192, 192, 384, 384, 384, 768, 768, 768};
    CHECK(numbers(folder.log("whole", "step"), "tokens") == tokens);
    CHECK(folder.log("whole", "step").back()["tokens_so_far"] == 4224);
    for (const int from : {3, 4, 5, 7}) {  // before, at and after a change
        if (ranks > 1 && from == 3) continue;
        const std::string out = "from_" + std::to_string(from);
        folder.copy_checkpoint("whole", from, out);
        const std::string output = folder.run_on(ranks, {"-o", folder.path(out), "-y", "auto"}).exits(0);
        CHECK_THAT(output, !Contains("changed:"));
        CHECK(folder.model(out, 10) == folder.model("whole", 10));
    }
}

TEST_CASE("-d may change when a run is resumed", "[run][batch_schedule]") {
    const TrainingFolder folder;
    folder.run(ten_steps(folder, "whole", {"-d", "192", "-x", "4"})).exits(0);
    // As if the schedule had said so from the start: steps, learning rates and weights.
    folder.run(ten_steps(folder, "schedule", kSchedule)).exits(0);
    const Texts again{"-o", folder.path("whole"), "-y", "auto"};
    const std::string output = folder.run(again + Texts{"-x", "10", "-d", "384"}).exits(0);
    CHECK_THAT(output, Contains("changed: --total-batch-tokens 192 -> 384\n") && Contains("learning rate at step 5"));
    CHECK(folder.model("whole", 7) != folder.model("schedule", 7));  // the schedule is of more tokens, and decays later
    folder.copy_checkpoint("schedule", 4, "whole");
    folder.run(again + Texts{"-d", "384", "--max-tokens", "4224"}).exits(0);
    CHECK(folder.model("whole", 7) == folder.model("schedule", 7));
    CHECK(folder.log("whole", "step").back()["step"] == 13);
    CHECK(folder.log("whole", "start")[0]["batch_sizes"] ==
          llmc::parse_json(R"([{"from_step": 1, "tokens": 192}, {"from_step": 5, "tokens": 384}])"));
    // Back to the old size, and without a change.
    folder.run(again + Texts{"-d", "192", "--max-tokens", "4608"}).exits(0);
    CHECK_THAT(folder.run(again + Texts{"--max-tokens", "4800"}).exits(0),
               Contains("training: 16 steps of 192 tokens"));
    CHECK(folder.log("whole", "step").back()["tokens_so_far"] == 4800);
}

TEST_CASE("a run that repeats its first batch keeps its size", "[run][batch_schedule]") {
    const TrainingFolder folder;
    const Texts repeats{"-b", "1", "-t", "16", "-a", "-v", "0", "--tune=off", "-o", folder.path("over")};
    folder.train(repeats + Texts{"-x", "2", "-d", "64"});
    CHECK_THAT(folder.refuse(repeats + Texts{"-x", "4", "-d", "128", "-y", "auto"}), Contains("--overfit-batch,"));
}
