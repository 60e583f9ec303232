// outer_steps_test.cpp - --outer-steps: what is due between two steps waits for the outer step, resumes, refusals
#include <chrono>
#include <cstdint>

#include "test/support/run_support.h"

using namespace test;

namespace {

Texts outer_flags(const TrainingFolder& folder, const std::string& out, const Texts& more) {
    return folder.flags(Texts{"-x", "13", "-u", "2", "--lr", "1e-2", "--tune=off", "--shuffle", "--outer-steps", "4",
                              "--outer-start-step", "3", "-d", "384", "-o", folder.path(out)} + more);
}

}  // namespace

TEST_CASE("tasks and checkpoints wait for the outer step, and runs resume from there", "[run][outer][ranks][mpi]") {
    const Texts more = GENERATE(values<Texts>({{}, {"--optimizer", "muon", "--dtype", "bf16", "--outer-bits", "4"},
                                               {"--outer-bits", "1"}}));
    CAPTURE(more);
    const TrainingFolder folder;
    const Texts flags = outer_flags(folder, "whole", more + Texts{"-v", "5", "-n", "2"});
    const std::string output = folder.run_ranks(2, flags).exits(0);
    CHECK_THAT(output, Contains("workers: 2 ranks, local steps from step 4 on, with an outer step after every 4 steps: "
                                "a worker sends 0."));
    const bool measured = output.find("\nouter steps: on this machine compression adds ") != output.npos;
    CHECK(measured == (more == Texts{"--outer-bits", "1"}));
    CHECK(folder.log("whole", "start")[0].contains("compression_pays_below_gbit_s") == measured);
    CHECK(numbers(folder.log("whole", "outer"), "step") == std::vector<double>{7, 11, 13});
    CHECK(numbers(folder.log("whole", "val"), "step") == std::vector<double>{0, 7, 11, 13});
    CHECK(numbers(folder.log("whole", "checkpoint"), "step") == std::vector<double>{2, 7, 11, 13});
    for (const int from : {2, 7, 11}) {
        const std::string out = "from_" + std::to_string(from);
        folder.copy_checkpoint("whole", from, out);
        CHECK_THAT(folder.run_ranks(2, {"-o", folder.path(out), "-y", "auto"}).exits(0), !Contains("changed:"));
        CHECK(folder.model(out, 13) == folder.model("whole", 13));
        CHECK(folder.log(out, "val").back()["loss"] == folder.log("whole", "val").back()["loss"]);
    }
    // With one worker less, with other rounds, and back to steps that all ranks make together.
    const auto again = [&](int ranks, const Texts& other) {
        folder.copy_checkpoint("whole", 11, "again");
        return folder.run_on(ranks, Texts{"-o", folder.path("again"), "-y", "auto", "-x", "20"} + other).exits(0);
    };
    CHECK_THAT(again(1, {"--outer-bits", "32"}),
               Contains("1 rank instead of 2: each starts with the mean of first_moment and second_moment"));
    CHECK(numbers(folder.log("again", "outer"), "step") == std::vector<double>{15, 19, 20});
    again(2, {"--outer-steps", "2", "--outer-momentum", "0"});
    CHECK(numbers(folder.log("again", "outer"), "step") == std::vector<double>{13, 15, 17, 19, 20});
    CHECK_THAT(again(2, {"--outer-bits", "32", "--dry-run"}),
               Contains("a worker sends 0.17 MB per round, instead of 0.17 per step\n") &&
                   Contains("a link of 0.1 Gbit/s needs 0.0136 s for the bytes of an outer step, 0.0544 s for those of "
                            "4 data-parallel steps;\n    0.109 s for those of the run, 0.272 s without outer steps"
                            "\n"));
    CHECK_THAT(again(2, {"--outer-bits", "32", "-x", "99999", "--dry-run"}), Contains(" 5:40 for those of the run, "));
    CHECK_THAT(again(2, {"--outer-start-step", "17"}), Contains("workers: 2 ranks, local steps from step 4 on"));
    CHECK(numbers(folder.log("again", "outer"), "step") == std::vector<double>{15, 19, 20});
    CHECK_THAT(again(2, {"--outer-steps", "0"}), Contains("optimizer state outer: not loaded") &&
                                                     Contains("ranks train together again: each starts with the mean"));
    CHECK(folder.log("again", "outer").empty());
}

TEST_CASE("a checkpoint within a round has the anchor as its model, which its readers say, and continues the round",
          "[run][outer][ranks][mpi]") {
    const TrainingFolder folder;
    const auto flags = [&](const std::string& out, int steps) {
        return last_of_each(outer_flags(folder, out, {"-x", std::to_string(steps), "--outer-steps", "500", "-v", "0",
                                                      "-k", "constant"}));
    };
    Process process(launcher(2) + Texts{program("train_gpt2")} + flags("saved", 4'000'000), folder.path("output.txt"));
    REQUIRE(process.prints("step 20/"));
    const auto rank = processes_with({folder.path()}, "OMPI_COMM_WORLD_RANK=1");
    REQUIRE(rank.size() == 1);
    kill(rank[0], SIGTERM);  // mpirun would kill the ranks if they took long to save
    process.result(std::chrono::seconds(60));
    REQUIRE(folder.log("saved", "end").size() == 1);
    const int last = folder.log("saved", "end")[0]["steps"];
    const std::string saved = folder.step("saved", last);
    REQUIRE(last % 500 != 3);
    CAPTURE(last);
    CHECK_THAT(process.output(), Contains("note: this checkpoint is saved within a round"));
    const auto forged = [&](auto&& change) {
        folder.copy_checkpoint("saved", last, "forged");
        const fs::path state = folder.step("forged", last) / "trainer_state.json";
        auto json = nlohmann::json::parse(read_bytes(state));
        change(json["workers"], json["optimizer"]["own"]);
        write_bytes(state, json.dump());
        make_checksums_right(state.parent_path());
        return folder.run_ranks(2, {"-o", folder.path("forged"), "-y", "auto"}).exits(2);
    };
    using Json = nlohmann::json;
    CHECK_THAT(forged([](Json& workers, Json&) { workers[1]["updates"] = 1; }), Contains("workers: skipped_steps"));
    CHECK_THAT(forged([](Json& workers, Json&) { workers.erase(1); }), Contains("number of workers is 1; expected 2"));
    CHECK_THAT(forged([](Json& workers, Json&) { workers[1]["own"]["local_after"] = 2; }),
               Contains("workers is in different rounds; expected the same round"));
    CHECK_THAT(forged([&](Json&, Json& own) { own["round_began"] = last + 1; }), Contains("round_began is"));
    CHECK_THAT(forged([&](Json& workers, Json& own) {
                   for (Json* const of : {&own, &workers[0]["own"], &workers[1]["own"]}) (*of)["round_began"] = last;
               }), Contains("less than the step, as there are weights of workers"));
    CHECK_THAT(forged([](Json&, Json& own) { own["rounds"] = nullptr; }), Contains("rounds is null; expected 0 to"));
    CHECK(fs::exists(saved + "/worker-00001-of-00002.safetensors"));
    const auto evaluated = [&](const std::string& path, int ranks = 1) {
        return folder.run_on(ranks, folder.flags({"-e", path, "--eval-only", "--tune=off"}));
    };
    const std::string note = "note: " + saved + " was saved within a round of --outer-steps: its model is that of the "
                             "last outer step\n";
    for (const std::string& path : {saved, folder.path("saved")}) {
        CAPTURE(path);
        CHECK_THAT(evaluated(path).exits(0), Contains(note));
        CHECK_THAT(folder.run({"-e", path, "--prompt", "ab", "-n", "1"}, "generate").exits(0), Contains(note));
    }
    CHECK_THAT(folder.run({"-e", saved, "-o", folder.path("model.bin")}, "export_llmc").exits(0), Contains(note));
    CHECK_THAT(evaluated(saved + "/model.safetensors").exits(0),
               Contains(saved + "/model.safetensors was saved within a round"));
    const Result both = evaluated(saved, 2);
    CHECK_THAT(both.exits(0), Contains(note));
    CHECK(both.count("was saved within a round") == 1);
    CHECK_THAT(folder.run_ranks(2, {"-o", folder.path("saved"), "-y", "auto", "--outer-steps", "0"}).exits(2),
               Contains("--outer-steps is 0; expected that of the run, because"));
    CHECK_THAT(folder.run_ranks(2, {"-o", folder.path("saved"), "-y", "auto", "-x", std::to_string(last)}).exits(2),
               Contains("expected more, because"));
    folder.run_ranks(2, flags("whole", last + 7)).exits(0);
    CHECK_THAT(folder.run_ranks(2, {"-o", folder.path("saved"), "-y", "auto", "-x", std::to_string(last + 7)}).exits(0),
               !Contains("was saved within"));
    CHECK(folder.model("saved", last + 7) == folder.model("whole", last + 7));
    CHECK_THAT(evaluated(folder.path("saved")).exits(0), !Contains("was saved within"));
}

TEST_CASE("--major-every keeps the checkpoint of the end of the round of a multiple", "[run][outer]") {
    const TrainingFolder folder;
    const auto kept = [&](const Texts& more) {
        folder.run(more).exits(0);
        return folder.saved_steps("out");
    };
    const Texts flags = outer_flags(folder, "out", {"-x", "24", "--outer-start-step", "12", "-n", "1", "-v", "0",
                                                    "--keep-checkpoints", "1", "--major-every", "5"});
    // Rounds end after 16, 20, ...: 24 is a whole round after 20.
    CHECK(kept(last_of_each(flags)) == std::vector<std::int64_t>{5, 10, 16, 20, 24});
    CHECK(kept({"-o", folder.path("out"), "-y", "auto", "-x", "29"}) ==
          std::vector<std::int64_t>{5, 10, 16, 20, 28, 29});
    CHECK(kept({"-o", folder.path("out"), "-y", "auto", "-x", "33", "--outer-steps", "0"}) ==
          std::vector<std::int64_t>{5, 10, 16, 20, 28, 30, 33});
}
