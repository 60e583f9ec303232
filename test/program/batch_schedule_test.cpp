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
    if (as.ranks > 1) skip_without_mpi();
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
    skip_without_mpi();
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

TEST_CASE("a resumed run of ranks without -d changes nothing", "[run][batch_schedule][ranks][mpi]") {
    skip_without_mpi();
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
             {"0:192,", "is \"\"; expected entries"},
             {"64:192", "entry 1: its first token is 64; expected 0, the start of the run"},
             {"0:192,0:384", "entry 2: its first token is 0; expected 1 or more"},
             {"0:192,1k:384,900:768", "entry 3: its first token is 900; expected 1001 or more"},
             {"0:0", "entry 1 is \"0\"; expected a whole number from 1"},
             {"0:-192", "entry 1 is \"-192\"; expected a whole number from 1"},
             {"0:192,1k:99999999999999999999", "entry 2 is \"99999999999999999999\"; expected"},
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

TEST_CASE("a batch that follows the noise scale is replayed from its checkpoints and from its schedule",
          "[run][batch_schedule]") {
    const Texts more = GENERATE(values<Texts>({{}, {"--optimizer", "muon", "--batch-beta-scaling"},
                                               {"--max-tokens", "0", "--epochs", "5"}}));
    CAPTURE(more);
    const TrainingFolder folder;
    const auto run = [&](const std::string& out, const Texts& schedule) {
        folder.run(folder.flags(Texts{"-e", "custom:l=1,h=2,c=32,t=16", "-b", "1", "-u", "4", "-v", "0", "--tune=off",
                                      "--max-tokens", "20000", "-o", folder.path(out)} + more + schedule)).exits(0);
        return folder.log(out, "end")[0];
    };
    const Texts grows{"-d", "32", "--batch-schedule", "auto", "--batch-max", "64", "--batch-kappa", "0.01"};
    const auto end = run("auto", grows);
    const auto decisions = folder.log("auto", "batch");
    REQUIRE(decisions.size() == 1);
    const std::int64_t after = decisions[0]["step"], last = end["steps"];
    CHECK((after >= 119 && decisions[0]["from_step"] == after + 2 && decisions[0]["tokens"] == 64));
    CHECK(end["batch_schedule"] == "0:32," + std::to_string(32 * (after + 1)) + ":64");
    CHECK(decisions[0]["total_steps"] == last);
    run("replay", {"--batch-schedule", end["batch_schedule"]});
    CHECK(folder.model("replay", last) == folder.model("auto", last));
    CHECK(folder.losses("replay") == folder.losses("auto"));
    CHECK(numbers(folder.log("replay", "step"), "lr") == numbers(folder.log("auto", "step"), "lr"));
    // While it counts, between the decision and its effect, after it.
    for (const std::int64_t from : {after - 3, after, after + 9}) {
        CAPTURE(from);
        const std::string out = "from_" + std::to_string(from);
        run("again", grows + Texts{"-n", std::to_string(from)});
        fs::create_directories(folder.path(out));
        fs::rename(folder.step("again", from), folder.step(out, from));
        fs::remove_all(folder.path("again"));
        CHECK_THAT(folder.run({"-o", folder.path(out), "-y", "auto"}).exits(0), !Contains("changed:"));
        CHECK(folder.model(out, last) == folder.model("auto", last));
        CHECK(folder.log(out, "batch").size() == (from < after ? 1 : 0));
        CHECK(folder.log(out, "end")[0]["batch_schedule"] == end["batch_schedule"]);
    }
}

TEST_CASE("a resumed run may begin and end to follow the noise scale", "[run][batch_schedule]") {
    const TrainingFolder folder;
    folder.run(ten_steps(folder, "out", kSchedule)).exits(0);
    const auto sizes = [&](const Texts& more) {
        fs::remove_all(folder.path("again"));
        fs::create_directories(folder.path("again"));
        fs::copy(folder.step("out", 5), folder.step("again", 5));
        folder.run(Texts{"-o", folder.path("again"), "-y", "auto"} + more).exits(0);
        return llmc::text_of(folder.log("again", "start")[0]["batch_sizes"]);
    };
    const Texts grows{"--batch-schedule", "auto", "--max-tokens", "5000"};
    // Sizes to come are those of the schedule: they were not decided.
    CHECK(sizes(grows + Texts{"-d", "96"}) ==
          R"([{"from_step":1,"tokens":192},{"from_step":5,"tokens":384},{"from_step":6,"tokens":96}])");
    CHECK(sizes(grows) == R"([{"from_step":1,"tokens":192},{"from_step":5,"tokens":384}])");
}

TEST_CASE("a batch that follows the noise scale is decided alike on all ranks, and kept on others",
          "[run][batch_schedule][ranks][mpi]") {
    skip_without_mpi();
    const TrainingFolder folder;
    const auto flags = folder.flags({"-e", "custom:l=1,h=2,c=32,t=16", "-b", "1", "-d", "96", "-u", "4", "-v", "0",
                                     "-n", "125", "--tune=off", "--max-tokens", "30000", "-z", "2", "-o",
                                     folder.path("ranks"), "--batch-schedule", "auto", "--batch-kappa", "0.01"});
    folder.run_ranks(3, flags).exits(0);
    REQUIRE(folder.log("ranks", "batch").size() >= 1);
    CHECK(folder.log("ranks", "batch")[0]["from_step"] == 121);
    fs::create_directories(folder.path("two"));
    fs::copy(folder.step("ranks", 125), folder.step("two", 125));
    folder.run_ranks(2, {"-o", folder.path("two"), "-y", "auto", "--max-tokens", "16000"}).exits(0);
    CHECK(folder.log("two", "batch").empty());
    CHECK(folder.log("two", "end")[0]["batch_schedule"] == "0:96,11520:192");
}

TEST_CASE("a batch that follows the noise scale never has more tokens than the data, or no step",
          "[run][batch_schedule]") {
    const TrainingFolder folder;
    const auto run = [&](const std::string& out, const std::string& tokens, const Texts& more) {
        folder.train(Texts{"-e", "custom:l=1,h=1,c=16,t=16", "-b", "64", "-t", "16", "-d", "2048", "-k", "constant",
                           "-v", "0", "--tune=off", "--max-tokens", tokens, "--batch-kappa", "0.01", "-o",
                           folder.path(out)} + more);
        return folder.log(out, "end")[0];
    };
    const Texts grows{"--batch-schedule", "auto", "--batch-max", "65536"};  // of 6,000 tokens of data
    const auto end = run("out", "1200000", grows);
    CHECK(folder.log("out", "batch").size() == 1);
    CHECK(folder.log("out", "step").back()["tokens"] == 4096);
    folder.run({"-o", folder.path("out"), "-y", "auto", "--max-tokens", "1220000"}).exits(0);
    // -d ends it, with its flags.
    CHECK_THAT(folder.run({"-o", folder.path("out"), "-y", "auto", "--max-tokens", "1230000", "-d", "1024"}).exits(0),
               Contains("steps of 1,024 tokens"));
    const std::int64_t decided = folder.log("out", "batch")[0]["step"];
    const auto last = run("short", std::to_string(2048 * (decided + 1)), grows);
    CHECK(folder.log("short", "batch").empty());
    CHECK(last["batch_schedule"] == "0:2048");
    const Texts repeats{"-b", "1", "-t", "16", "-a", "-v", "0", "--tune=off", "-o", folder.path("over")};
    folder.train(repeats + Texts{"-x", "2", "-d", "64"});
    CHECK_THAT(folder.refuse(repeats + Texts{"-x", "4", "-d", "128", "-y", "auto"}), Contains("--overfit-batch,"));
}

TEST_CASE("a batch that follows the noise scale needs a length in tokens and something to measure",
          "[run][batch_schedule]") {
    const TrainingFolder folder;
    for (const auto& [flags, says] : std::vector<std::pair<Texts, std::string>>{
             {{"-x", "100"}, "--max-steps is 100; expected none with --batch-schedule auto"},
             {{"--noise-scale", "off"}, "--noise-scale is off with --batch-schedule auto"},
             {{"-d", "16"}, "auto without a noise scale; expected at least two micro-batches"},
             {{"--batch-max", "63"}, "--batch-max is 63; expected at least 64, twice the tokens of the first step"},
             {{"--batch-schedule", "0:32", "-d", "0", "--batch-max", "64"}, "--batch-max is 64; expected 0 without"},
             {{"--pad-last"}, "expected steps of one size"},
             {{"--optimizer", "onebit-adam"}, "whose second moment freezes with the noise of one size"}}) {
        CAPTURE(flags);
        const std::string output =
            folder.refuse(Texts{"-b", "1", "-t", "16", "-d", "32", "--batch-schedule", "auto"} + flags);
        CHECK_THAT(output, Contains(says));
    }
    CHECK_THAT(folder.train({"-b", "1", "-d", "32", "--batch-schedule", "auto", "--dry-run", "-o", folder.path("x")}),
               Contains("doubled up to 256 tokens while the gradient noise scale is at least 1 times the doubled ") &&
                   Contains("--max-tokens 5984 -> "));
}
