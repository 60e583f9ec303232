// batch_schedule_test.cpp - runs whose steps change their size, by --batch-schedule or by another -d at a resume
#include <cmath>

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
    struct Run {
        int ranks;
        Texts flags;
    };
    const Run as = GENERATE(values<Run>({
        {1, {}},
        {2, {"-z", "1", "--dtype", "bf16", "--stochastic-rounding"}},
        {3, {"-z", "2"}},
        {2, {"-z", "1", "--optimizer", "muon"}},
        {1, {"--skip-norm-z", "4", "-k", "wsd", "--batch-beta-scaling"}},
    }));
    CAPTURE(as.ranks, as.flags);
    const TrainingFolder folder;
    folder.run_on(as.ranks, ten_steps(folder, "whole", as.flags + kSchedule)).exits(0);
    const std::vector<double> tokens{192, 192, 192, 192, 384, 384, 384, 768, 768, 768};
    CHECK(numbers(folder.log("whole", "step"), "tokens") == tokens);
    CHECK(folder.log("whole", "step").back()["tokens_so_far"] == 4224);
    for (const int from : {3, 4, 5, 7}) {  // before, at and after a change
        if (as.ranks > 1 && from == 3) continue;
        const std::string out = "from_" + std::to_string(from);
        fs::create_directories(folder.path(out));
        fs::copy(folder.step("whole", from), folder.step(out, from));
        const std::string output = folder.run_on(as.ranks, {"-o", folder.path(out), "-y", "auto"}).exits(0);
        CHECK_THAT(output, !Contains("changed:"));
        CHECK(folder.model(out, 10) == folder.model("whole", 10));
    }
}

TEST_CASE("ranks and micro-batches make the same steps of a batch schedule", "[run][batch_schedule][ranks][mpi]") {
    const TrainingFolder folder;
    folder.run(ten_steps(folder, "one", kSchedule)).exits(0);
    folder.run_ranks(3, ten_steps(folder, "three", kSchedule + Texts{"-b", "4"})).exits(0);
    fs::create_directories(folder.path("other"));
    fs::copy(folder.step("one", 5), folder.step("other", 5));
    folder.run_ranks(4, {"-o", folder.path("other"), "-y", "auto"}).exits(0);
    const auto one = folder.losses("one"), three = folder.losses("three"), other = folder.losses("other");
    REQUIRE((three.size() == 10 && other.size() == 5));
    for (std::size_t i = 0; i < one.size(); ++i) {
        CAPTURE(i);
        CHECK(std::fabs(one[i] - three[i]) < 1e-6);
        if (i >= 5) CHECK(std::fabs(one[i] - other[i - 5]) < 1e-6);
    }
    // The number of targets is that of the step: the loss and the noise scale count every token once.
    CHECK(numbers(folder.log("three", "step"), "valid_tokens") == numbers(folder.log("one", "step"), "tokens"));
    const std::string refused = folder.run_ranks(4, {"-o", folder.path("other"), "-y", "auto", "-x", "12",
                                                     "--batch-schedule", "0:192,700:384,1900:480"}).exits(2);
    CHECK_THAT(refused, Contains("the nearest are 448 and 512"));
}

TEST_CASE("the noise scale is measured from the first step of two micro-batches on", "[run][batch_schedule]") {
    const TrainingFolder folder;
    folder.train({"-x", "40", "-b", "1", "-v", "0", "--batch-schedule", "0:16,100:64", "-o", folder.path("out")});
    CHECK(folder.log("out", "start")[0]["noise_scale"] == "micro");
    const auto steps = folder.log("out", "step");
    const auto is_measured = [](const nlohmann::json& step) { return step["noise_scale_tokens"].is_number(); };
    CHECK(std::none_of(steps.begin(), steps.begin() + 7, is_measured));
    CHECK(std::any_of(steps.begin() + 7, steps.end(), is_measured));
}

TEST_CASE("a resumed run of ranks without -d changes nothing", "[run][batch_schedule][ranks][mpi]") {
    const TrainingFolder folder;
    folder.run_ranks(2, folder.flags({"-x", "4", "-n", "2", "-v", "0", "-o", folder.path("out")})).exits(0);
    fs::create_directories(folder.path("again"));
    fs::copy(folder.step("out", 2), folder.step("again", 2));
    CHECK_THAT(folder.run_ranks(2, {"-o", folder.path("again"), "-y", "auto"}).exits(0), !Contains("changed:"));
    CHECK(folder.model("again", 4) == folder.model("out", 4));
    CHECK_THAT(folder.run({"-o", folder.path("again"), "-y", "auto", "-x", "6"}).exits(0),
               Contains("changed: --total-batch-tokens 0 -> 128\n") && Contains("the schedule is now of 6 steps"));
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
    fs::remove_all(folder.path("whole"));
    fs::create_directories(folder.path("whole"));
    fs::copy(folder.step("schedule", 4), folder.step("whole", 4));
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

TEST_CASE("batch schedules that cannot be are refused in one line", "[run][batch_schedule]") {
    const TrainingFolder folder;
    std::string many = "0:192";
    for (int i = 1; i < 10000; ++i) many += ',' + std::to_string(1000 * i) + ":192";
    for (const auto& [schedule, says] : std::vector<std::pair<std::string, std::string>>{
             {"192", "expected entries FROM:TOKENS, such as 0:65536,200M:131072"},
             {"0:192,", "is \"0:192,\", with an empty entry; expected entries"},
             {"0:192,x", "is \"0:192,x\", with the entry \"x\"; expected entries"},
             {"64:192", "entry 1: its first token is 64; expected 0, the start of the run"},
             {"0:192,0:384", "entry 2: its first token is 0; expected 1 or more"},
             {"0:192,1k:384,900:768", "entry 3: its first token is 900; expected 1001 or more"},
             {"0:0", "entry 1 is \"0\"; expected a whole number from 1"},
             {"0:-192", "entry 1 is \"-192\"; expected a whole number from 1"},
             {"0:192,1k:99999999999999999999", "entry 2 is \"99999999999999999999\"; expected"},
             {"0:200", "a size of --batch-schedule is 200; expected a multiple of"},
             {"0:192,1k:200", "a size of --batch-schedule is 200; expected a multiple of"},
             {"0:192,1M:384", "expected sizes that begin within the 10 steps"},
             {"0:192,10:384,20:768", "the size from 10 tokens on is without a step"},
             {many, "entry 101 is too many; expected at most 100 entries"}}) {
        CAPTURE(schedule);
        const std::string output = folder.refuse({"-x", "10", "-b", "1", "-t", "16", "--batch-schedule", schedule});
        CHECK_THAT(output, Contains(says));
        CHECK(lines_of(output).size() == 1);
    }
    for (const auto& [flag, says] : std::vector<std::pair<Texts, std::string>>{
             {{"-d", "192"}, "--total-batch-tokens is 192; expected none with --batch-schedule"},
             {{"--pad-last"}, "expected steps of one size"},
             {{"--overfit-batch"}, "expected steps of one size"},
             {{"--optimizer", "onebit-adam"}, "expected 192 tokens in every step with --optimizer onebit-adam"}}) {
        CAPTURE(flag);
        CHECK_THAT(folder.refuse(Texts{"-x", "10", "-b", "1"} + kSchedule + flag), Contains(says));
    }
}

TEST_CASE("a run that repeats its first batch keeps its size", "[run][batch_schedule]") {
    const TrainingFolder folder;
    const Texts repeats{"-b", "1", "-t", "16", "-a", "-v", "0", "--tune=off", "-o", folder.path("over")};
    folder.train(repeats + Texts{"-x", "2", "-d", "64"});
    CHECK_THAT(folder.refuse(repeats + Texts{"-x", "4", "-d", "128", "-y", "auto"}), Contains("--overfit-batch,"));
}
