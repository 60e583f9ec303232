// disk_test.cpp - the real program when files change during a run: existing names, a truncated shard, a deleted output
// folder
#include <sys/stat.h>

#include "test/support/run_support.h"

using namespace test;

namespace {

// A run that has made three steps and continues for half a minute if nothing ends it.
Process long_run(const TrainingFolder& folder, const Texts& more = {}) {
    Process run = folder.start(folder.flags(
        Texts{"-x", "100000000", "--max-minutes", "0.5", "-v", "0", "-o", folder.path("out")} + more));
    REQUIRE(run.prints("step 3/"));
    return run;
}

}  // namespace

TEST_CASE("a run checks all names that it may write before its first step", "[run]") {
    const TrainingFolder folder;
    fs::create_directories(folder.path("out"));
    const auto run = [&](const Texts& more) {
        return folder.run(folder.flags(more + Texts{"-v", "0", "-o", folder.path("out")}));
    };
    const auto check_refused = [&](const Result& result, const std::string& name) {
        CHECK_THAT(result.exits(2), Contains("error: --output-dir is \"" + folder.path("out") + "\"; expected ") &&
                                    Contains(name) && Contains("choose another folder") && !Contains("step 1/"));
        CHECK(result.count("error: ") == 1);
        CHECK_FALSE(fs::exists(folder.path("out/log.jsonl")));
    };
    fs::create_directory(folder.path("out/step_00000004"));
    check_refused(run({"-x", "4"}), "step_00000004");
    check_refused(run({"-x", "5"}), "step_00000004");  // if it is interrupted there
    check_refused(run({"-x", "4", "--dry-run"}), "step_00000004");
    check_refused(run({"-x", "3"}), "step_00000004");  // which -y auto would resume
    write_bytes(folder.path("out/step_00000002"), "a file");
    check_refused(run({"-x", "4", "-n", "2"}), "step_00000002");
    for (const char* const name : {"2", "4"}) fs::remove(folder.path("out/step_0000000" + std::string(name)));
    for (const char* const name : {"log.jsonl", "options.json", "best"}) {
        const fs::path path = folder.path("out/" + std::string(name));
        for (const bool pipe : {false, true}) {
            if (pipe) REQUIRE(mkfifo(path.c_str(), 0600) == 0);
            else fs::create_directory(path);
            for (const Texts& more : {Texts{}, {"-y", "auto"}})
                CHECK_THAT(folder.run(folder.flags(more + Texts{"-x", "3", "-v", "1", "--keep-best",
                                                                "--keep-checkpoints", "1", "-o", folder.path("out")}))
                               .exits(2),
                           Contains("error: --output-dir is \"" + folder.path("out") +
                                    "\"; expected a folder in which " + name + " is "));
            fs::remove(path);
        }
    }
    // Names of no step of the run.
    fs::create_directory(folder.path("out/step_4"));
    fs::create_directory(folder.path("out/step_00000001.old"));
    run({"-x", "3"}).exits(0);
}

TEST_CASE("a shard truncated during a run ends it with one error line and the model saved", "[run]") {
    const TrainingFolder folder;
    const auto [flags, left] = GENERATE(table<Texts, int>({
        {Texts{}, 0}, {Texts{"--shuffle"}, 8192}, {Texts{}, 5000}, {Texts{"--shuffle"}, 12500},
        {Texts{"-v", "5"}, 1100}}));  // the validation shard
    CAPTURE(flags, left);
    const std::string shard = folder.path(left == 1100 ? "val_0.bin" : "train_0.bin");
    Process run = long_run(folder, flags);
    fs::resize_file(shard, std::uintmax_t(left));
    const Result ended = run.result();
    CHECK_THAT(ended.exits(1), Contains("error: shard " + shard + " is cut off; "));
    CHECK(ended.count("error: ") == 1);
    const auto steps = folder.log("out", "step");
    const auto saved = folder.log("out", "checkpoint");
    REQUIRE(saved.size() == 1);
    CHECK(saved[0]["step"] == steps.size());
    const fs::path model = saved[0]["folder"].get<std::string>();
    CHECK(fs::exists(model / "model.safetensors"));
    CHECK(model.parent_path() == folder.path("out"));
    CHECK(names_in(folder.path("out")) == std::set<std::string>{"log.jsonl", "options.json", model.filename()});
    CHECK(folder.log("out", "end").size() == 1);
    CHECK(folder.log("out", "skip").empty());
}

TEST_CASE("an output folder that is deleted, moved away or another run's ends the run, with the model saved", "[run]") {
    const TrainingFolder folder;
    const std::string fate = GENERATE("deleted", "moved", "another run's");
    CAPTURE(fate);
    Process run = long_run(folder, {"--keep-checkpoints", "1"});
    // As a new run leaves it that was started after a deletion or a move, here in one step.
    const fs::path next = folder.path("next");
    fs::create_directories(next / "step_00000001");
    write_bytes(next / "log.jsonl", "{\"event\":\"start\"}\n");
    write_bytes(next / "step_00000001" / "manifest.json", "{}");
    if (fate == "deleted") fs::remove_all(folder.path("out"));
    else if (fate == "moved") fs::rename(folder.path("out"), folder.path("elsewhere"));
    else REQUIRE(renameat2(AT_FDCWD, next.c_str(), AT_FDCWD, folder.path("out").c_str(), RENAME_EXCHANGE) == 0);
    const Result ended = run.result();
    CHECK_THAT(ended.exits(1), Contains("error: " + folder.path("out/log.jsonl") + " is deleted or moved away; "));
    CHECK(ended.count("error: ") == 1);
    CHECK(fs::exists(folder.path("out")) == (fate == "another run's"));
    if (fs::exists(folder.path("out"))) {
        CHECK(read_bytes(folder.path("out/log.jsonl")) == "{\"event\":\"start\"}\n");
        CHECK(names_in(folder.path("out")).size() == 2);
    }
    // It is saved to a path that no other run uses.
    const auto saved = ended.output.rfind("| saved " + folder.path("out") + ".process-");
    REQUIRE(saved != std::string::npos);
    std::istringstream words(ended.output.substr(saved + 8));
    std::string model;
    words >> model;
    CHECK(fs::exists(fs::path(model) / "model.safetensors"));
}
