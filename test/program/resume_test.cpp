// resume_test.cpp - interrupted and resumed runs: bit-identical, with other ranks, with damaged checkpoints, and the
// options that are refused
#include <sys/stat.h>

#include <cmath>

#include "llmc/base/line_file.h"
#include "llmc/weights/saved_model.h"
#include "test/support/model_support.h"
#include "test/support/pattern.h"
#include "test/support/run_support.h"

using namespace test;

namespace {

Result run(const TrainingFolder& folder, int ranks, const std::string& out, const Texts& more = {}) {
    return folder.run_on(ranks, twelve_steps(folder, out) + more);
}

// The folder of a run that was killed after its checkpoint of step 5.
void copy_stopped(const TrainingFolder& folder, const std::string& from, const std::string& to) {
    folder.copy_checkpoint(from, 5, to);
    std::ofstream log(folder.path(to) + "/log.jsonl");
    for (const std::string& line : lines_of(read_bytes(folder.path(from) + "/log.jsonl"))) {
        const auto event = llmc::parse_json(line);
        if (event["event"] == "checkpoint" && event["step"] > 5) break;
        log << line << '\n';
        if (event["event"] == "step" && event["step"] == 9) break;
    }
    log << R"({"event":"step","st)";  // killed while writing a line
}

std::map<std::string, std::string> bytes_of(const fs::path& folder) {
    std::map<std::string, std::string> files;
    for (const std::string& name : names_in(folder))
        if (name.ends_with(".safetensors")) files[name] = read_bytes(folder / name);
    REQUIRE(files.size() >= 2);
    return files;
}

// Every step once, without steps that were repeated later, and without times.
std::map<std::int64_t, std::string> steps_of(const TrainingFolder& folder, const std::string& out) {
    std::map<std::int64_t, std::string> steps;
    for (const std::string& line : lines_of(read_bytes(folder.path(out) + "/log.jsonl"))) {
        const auto event = llmc::parse_json(line);
        REQUIRE(event.is_object());
        if (event["event"] == "resume") steps.erase(steps.upper_bound(event["step"]), steps.end());
        if (event["event"] == "step") CHECK(steps.emplace(event["step"], llmc::text_of(without_times(event))).second);
    }
    return steps;
}

void replace_in(const fs::path& file, const std::string& from, const std::string& to) {
    edit(file, [&](std::string& text) {
        const auto at = text.find(from);
        REQUIRE(at != std::string::npos);
        text.replace(at, from.size(), to);
    });
}

}  // namespace

TEST_CASE("a resumed run is bit-identical to an uninterrupted one", "[run][resume]") {
    const auto [ranks, flags] = GENERATE(table<int, Texts>({
        {1, {}},
        {1, {"--dtype", "bf16", "--stochastic-rounding", "--shuffle", "-d", "1920", "--pad-last"}},  // into epoch 2
        {1, {"--overfit-batch", "--dtype", "bf16"}},
        {2, {"--shuffle", "-z", "0"}},
        {2, {"-z", "1", "--dtype", "bf16", "--fp8", "head"}},
        {1, {"--optimizer", "muon"}},
        {3, {"--optimizer", "muon", "-z", "0", "--dtype", "bf16", "--stochastic-rounding", "--shuffle"}},
        {2, {"--optimizer", "muon", "-z", "2", "--reduce-dtype", "bf16"}},
        {3, {"-z", "2", "--dtype", "bf16", "--stochastic-rounding", "--shuffle"}},
        {1, {"--optimizer", "onebit-adam", "--onebit-freeze-step", "7"}},
        {2, {"--optimizer", "onebit-adam", "--onebit-freeze-step", "3"}},
        {3, {"--optimizer", "onebit-adam", "--onebit-freeze-step", "7", "--onebit-exclude", "ln_", "--onebit-scale",
             "tensor", "--dtype", "bf16", "--stochastic-rounding", "--shuffle"}},
    }));
    CAPTURE(ranks, flags);
    const TrainingFolder folder;
    run(folder, ranks, "whole", flags).exits(0);
    copy_stopped(folder, "whole", "stopped");
    const Texts again{"-o", folder.path("stopped"), "-y", "auto"};  // the checkpoint has the other options
    const std::string output = folder.run_on(ranks, again).exits(0);
    CHECK_THAT(output, Contains("resuming after step 5/12 from ") && !Contains("changed:"));
    for (const int number : {10, 12})
        CHECK(bytes_of(folder.step("stopped", number)) == bytes_of(folder.step("whole", number)));
    CHECK(steps_of(folder, "stopped") == steps_of(folder, "whole"));
    CHECK(steps_of(folder, "stopped").size() == 12);
}

TEST_CASE("a run resumes with other ranks, stages and micro-batches", "[run][resume][ranks][mpi]") {
    const std::string optimizer = GENERATE("adamw", "muon");
    CAPTURE(optimizer);
    const TrainingFolder folder;
    struct Part {
        int ranks;
        const char *stage, *batch, *steps;
    };
    bool first = true;
    for (const Part& part : {Part{4, "0", "1", "3"}, Part{1, "0", "4", "5"}, Part{3, "2", "2", "9"},
                             Part{4, "1", "1", "12"}}) {
        Texts flags{"--shuffle", "-z", part.stage, "-b", part.batch, "-x", part.steps, "-u", "0", "-k", "constant",
                    "--optimizer", optimizer};
        const std::string output = run(folder, part.ranks, "parts", flags + Texts{"-y", "auto"}).exits(0);
        CHECK((output.find("changed: ranks ") == std::string::npos) == first);
        first = false;
    }
    run(folder, 1, "constant", {"--shuffle", "-k", "constant", "--optimizer", optimizer}).exits(0);
    const auto got = folder.losses("parts"), want = folder.losses("constant");
    REQUIRE(got.size() == 12);
    for (std::size_t i = 0; i < got.size(); ++i) {
        CAPTURE(i, got[i] - want[i]);
        CHECK(std::fabs(got[i] - want[i]) < 1e-6);
    }
    if (optimizer == "muon") return;
    // Without flags the ranks divide the steps anew: 12 sequences in micro-batches of 1 are 3 of 4 ranks.
    run(folder, 1, "more", {"-b", "12", "-x", "3"}).exits(0);
    const std::string more = folder.run_ranks(4, {"-o", folder.path("more"), "-y", "auto", "-x", "5"}).exits(0);
    CHECK_THAT(more, Contains("changed: --micro-batch 12 -> 3\n"));
}

TEST_CASE("a resumed run takes its options from the checkpoint, and what is given now instead", "[run][resume]") {
    const TrainingFolder folder;
    const auto again = [&](const Texts& more) {
        CAPTURE(more);
        const std::string output = folder.run(Texts{"-o", folder.path("out"), "-y", "auto"} + more).exits(0);
        return output;
    };
    run(folder, 1, "out",
        {"-d", "0", "-b", "12", "-x", "0", "--max-tokens", "2113", "--warmup-tokens", "193"}).exits(0);
    const auto rates = numbers(folder.log("out", "step"), "lr");
    CHECK((rates.size() == 12 && rates[0] == 5e-3f && rates[1] == 1e-2f && rates[3] < 1e-2f));  // 2 of 12 steps warm up
    const std::string finished = again({});
    CHECK_THAT(finished, Contains("the checkpoint has completed all 12 steps; to train further (the learning rate "
                                  "rises from 0.00122 to 0.00614): ") &&
                             Contains("train_gpt2 -o " + folder.path("out") + " -y auto -x 24"));
    const std::string extended = again({"-x", "14", "-b", "4", "--lr", "2e-2"});
    CHECK_THAT(extended, Contains("changed: --max-steps 0 -> 14\n") && Contains("changed: --lr 0.01 -> 0.02\n") &&
                             Contains("changed: --max-tokens 2113 -> 0\n") &&
                             Contains("changed: --total-batch-tokens 0 -> 192\n"));
    // The end of the old schedule, and 0.002 + 0.018 (1 + cos(pi 10 / 12)) / 2.
    CHECK_THAT(extended, Contains("changed: learning rate at step 13: 0.001 -> 0.00321; the schedule is now of 14 "
                                  "steps\n"));
    CHECK_THAT(again({"-x", "15", "-b", "auto"}), Contains("changed: --micro-batch 4 -> 12\n"));
    CHECK_THAT(again({"-x", "16", "--dry-run", "--ranks", "4"}),  // of ranks that resume it
               Contains("training: 16 steps of 192 tokens, micro-batches per step: 1\n"));
    run(folder, 1, "long", {"-x", "94", "-v", "0"}).exits(0);
    for (const std::string flag : {"--max-steps", "--max-tokens", "--epochs"}) {
        const Texts all{"-o", folder.path("long"), "-y", "auto", "--dry-run", flag};
        const std::string refused = folder.run(all + Texts{"1"}).exits(2);
        const auto advice = Pattern("expected at least the 94 that .*; increase " + flag + " to at least ([0-9]+)")
                                .matches(refused);
        REQUIRE(advice.size() == 1);
        folder.run(all + Texts{advice[0][1]}).exits(0);
    }
    const auto options = llmc::parse_json(read_bytes(folder.path("out/options.json")));
    CHECK(options["micro-batch"] == 12);
    CHECK(options["lr"] == 0.02);
    CHECK(numbers(folder.log("out", "step"), "tokens") == std::vector<double>(15, 192.0));
}

TEST_CASE("an inconsistent checkpoint is refused, even with correct checksums", "[run][resume]") {
    const TrainingFolder folder;
    run(folder, 1, "whole", {"-x", "5"}).exits(0);
    const auto refusal = [&](const std::string& out, auto&& change) {
        copy_stopped(folder, "whole", out);
        change(folder.step(out, 5));
        const std::string output = run(folder, 1, out, {"-y", "auto"}).exits(2);
        CHECK_THAT(output, !Contains("step 6/"));
        return output;
    };
    CHECK_THAT(refusal("heads", [](const fs::path& last) {
                   replace_in(last / "config.json", "\"n_head\": 2", "\"n_head\": 4");
                   make_checksums_right(last);
               }),
               Contains("which --init custom:l=2,h=2,c=32,t=16 names; the checkpoint's config.json has been changed"));
    CHECK_THAT(refusal("name", [](const fs::path& last) { fs::rename(last, last.parent_path() / "step_00000006"); }),
               Contains("step_00000006 is 5; expected the step in its name"));
}

TEST_CASE("a flag that an earlier version did not have must have its default", "[run][resume]") {
    const TrainingFolder folder;
    run(folder, 1, "whole", {"-x", "5"}).exits(0);
    const fs::path last = folder.step("whole", 5);
    replace_in(last / "trainer_state.json", "\"document-mask\"", "\"unknown\"");
    make_checksums_right(last);
    CHECK_THAT(run(folder, 1, "whole", {"-y", "auto", "-x", "6", "--document-mask"}).exits(2),
               Contains("--document-mask is true; expected false, as in the run that --resume continues"));
    run(folder, 1, "whole", {"-y", "auto", "-x", "6"}).exits(0);
}

TEST_CASE("a checkpoint is not resumed by a different run, or without -y", "[run][resume]") {
    const TrainingFolder folder;
    run(folder, 1, "whole").exits(0);
    for (const char* const copy : {"model", "unlisted"}) {
        fs::create_directory(folder.path(copy));
        for (const char* const name : {"config.json", "model.safetensors"})
            fs::copy(folder.step("whole", 5) / name, fs::path(folder.path(copy)) / name);
    }
    fs::copy(folder.step("whole", 5) / "trainer_state.json", folder.path("unlisted"));
    fs::create_directory(folder.path(".step_00000009.partial"));
    for (const auto& [flags, says] : std::vector<std::pair<Texts, std::string>>{
             {{}, "another run's log.jsonl"},
             {{"-y", "never"}, "--resume auto"},
             {{"-y", "auto", "-e", "custom:l=1,h=2,c=32,t=16"}, "--init"},
             {{"-y", "auto", "--seed", "2"}, "--seed"},
             {{"-y", "auto", "--optimizer", "onebit-adam"}, "--optimizer is onebit-adam; expected adamw, as in the"},
             {{"-y", "auto", "--shuffle"}, "--shuffle"},
             {{"-y", "auto", "-x", "11"}, "--max-steps"},
             {{"-y", "auto", "-i", folder.path("val_*.bin")}, "training shard 0"},
             {{"-y", "auto", "-i", folder.path("val_*.bin")}, "--allow-new-data"},
             {{"-y", folder.path("nothing")}, "which does not exist; expected auto, never or a checkpoint's folder"},
             {{"-y", folder.path("train_0.bin")}, ", a file; expected auto, never or a checkpoint's folder"},
             {{"-y", folder.path("whole")}, "a run's folder; expected a checkpoint in it"},
             {{"-y", folder.path("model")}, "a model without a trainer state"},
             {{"-y", folder.path("unlisted")}, "without manifest.json; expected a complete checkpoint"},
             {{"-y", folder.path()}, "manifest.json"},
             {{"-y", folder.path(".step_00000009.partial")}, "incomplete; expected a complete checkpoint"},
             {{"-y", folder.path(".step_00000009.partial/")}, "incomplete; expected a complete checkpoint"},
         }) {
        CAPTURE(flags);
        const std::string output = run(folder, 1, "whole", flags).exits(2);
        CHECK_THAT(output, Contains("error: ") && Contains(says));
    }
    const std::string more = run(folder, 1, "whole", {"-y", "auto", "-x", "13", "--lr", "1e-3"}).exits(0);
    CHECK_THAT(more, Contains("changed: --lr 0.01 -> 0.001") && Contains("changed: --max-steps 12 -> 13"));
    run(folder, 1, "whole", {"-y", "auto", "-x", "13"}).exits(0);
    CHECK(steps_of(folder, "whole").size() == 13);
    const Result other = run(folder, 1, "other", {"-y", folder.step("whole", 5), "--allow-new-data", "-i",
                                                  folder.path("val_*.bin"), "-x", "6"});
    CAPTURE(other.output);
    CHECK(other.exit_code == 0);
    CHECK_THAT(other.output, Contains("changed: training data: "));
    CHECK(steps_of(folder, "other").size() == 1);
}

TEST_CASE("a run resumes from a checkpoint of step 0, by any path of its folder", "[run][resume]") {
    const TrainingFolder folder;
    run(folder, 1, "whole").exits(0);
    run(folder, 1, "start", {"--max-minutes", "1e-12"}).exits(0);
    REQUIRE(fs::exists(folder.step("start", 0)));
    const llmc::ParameterTable table(llmc::SavedModel(folder.step("start", 0)).config());
    CHECK(weights_in(folder.step("start", 0)) == initial_weights(table, 1337));
    run(folder, 1, "start", {"-y", "auto", "-x", "6", "--max-minutes", "0"}).exits(0);
    write_bytes(folder.path("start/run_-1"), "");  // a name that only looks like a step's
    for (const char* const end : {"/", "/."}) {
        run(folder, 1, "start", {"-y", folder.step("start", 6).string() + end, "-x", "6"}).exits(0);
        fs::remove_all(folder.step("start", 12));
    }
    fs::create_directory_symlink(folder.step("start", 6), folder.path("link"));
    run(folder, 1, "start", {"-y", folder.path("link")}).exits(0);
    CHECK(steps_of(folder, "start").size() == 12);
}

TEST_CASE("a refused run does not change the files of another run, or those it may still write", "[run][resume]") {
    const TrainingFolder folder;
    run(folder, 1, "whole").exits(0);
    const auto refused = [&](const std::string& out, const Texts& flags, const char* says) {
        CAPTURE(flags);
        const std::string output = run(folder, 1, out, flags).exits(2);
        CHECK_THAT(output, Contains(says));
    };
    // Resumed from step 5, although the run has later checkpoints.
    refused("whole", {"-y", folder.step("whole", 5), "-x", "9"}, "after the step that --resume continues from");
    // A branch into a folder that has a step below it, which --keep-checkpoints would delete.
    fs::create_directories(folder.step("branch", 3));
    refused("branch", {"-y", folder.step("whole", 5), "--keep-checkpoints", "1"}, "step_00000003");
    // A command that cannot start, while a run is saving.
    fs::create_directories(folder.path("whole/.step_00000011.partial"));
    write_bytes(folder.step("whole", 12) / "model.safetensors", "damaged");
    refused("whole", {"-y", "auto", "-i", folder.path("nothing*.bin")}, "nothing*.bin");
    {  // While another run writes there, its checkpoints may be in any state.
        const llmc::LineFile log_of_other(folder.path("whole/log.jsonl"));
        for (const Texts& flags : {Texts{}, {"-y", "auto"}, {"-y", folder.step("whole", 5), "-x", "9"}})
            CHECK(run(folder, 1, "whole", flags).exits(2) == "error: --output-dir is \"" + folder.path("whole") +
                      "\"; expected a folder that no other run writes to; choose another folder\n");
        run(folder, 1, "whole", {"-y", "auto", "--dry-run"}).exits(0);  // which needs no log
    }
    fs::create_symlink("missing", folder.path("dangling"));
    for (const char* const end : {"", "/"})
        for (const Texts& flags : {Texts{}, {"-y", "auto"}, {"--dry-run"}})
            CHECK(run(folder, 1, std::string("dangling") + end, flags).exits(2) ==
                  "error: --output-dir is \"" + folder.path("dangling") + end + "\", a symbolic link to nothing; "
                  "expected a folder; remove the link, or make its target\n");
    CHECK(fs::exists(folder.path("whole/.step_00000011.partial")));
    CHECK(fs::exists(folder.step("whole", 12)));
    // A branch without a checkpoint of its own does not start from random weights.
    run(folder, 1, "lost", {"-y", folder.step("whole", 5), "-x", "7"}).exits(0);
    fs::remove_all(folder.step("lost", 7));
    std::ofstream(folder.path("lost/log.jsonl"), std::ios::app) << "{\"event\":5}\n[]\nno JSON\n";
    refused("lost", {"-y", "auto"}, "its run resumed from ");
    // A pipe in place of the log does not block.
    fs::create_directories(folder.path("pipe"));
    REQUIRE(mkfifo(folder.path("pipe/log.jsonl").c_str(), 0600) == 0);
    refused("pipe", {"-y", "auto"}, "--output-dir");
}

TEST_CASE("a branch of a finished run has its model; other lines in the log are refused", "[run][resume]") {
    const TrainingFolder folder;
    run(folder, 1, "whole", {"-x", "4"}).exits(0);
    run(folder, 1, "branch", {"-x", "4", "-y", folder.step("whole", 4)}).exits(0);
    CHECK(bytes_of(folder.step("branch", 4)) == bytes_of(folder.step("whole", 4)));
    const std::string log = folder.path("branch/log.jsonl");
    std::ofstream(log, std::ios::app) << "\nno JSON\n";
    const std::string lines = read_bytes(log);
    const std::string again = run(folder, 1, "branch", {"-x", "4", "-y", "auto"}).exits(2);
    CHECK_THAT(again, Contains(log + " line " + std::to_string(std::count(lines.begin(), lines.end(), '\n')) +
                               " is \"no JSON\"; expected a JSON object"));
    CHECK(read_bytes(log) == lines);
}

TEST_CASE("checkpoints of major steps are not deleted unless a flag says so", "[run][resume]") {
    const TrainingFolder folder;
    const Texts kept{"-n", "2", "--keep-checkpoints", "1"};
    run(folder, 1, "out", kept + Texts{"--major-every", "4", "-x", "10"}).exits(0);
    const std::string removed = run(folder, 1, "out", kept + Texts{"-y", "auto", "--major-every", "0"}).exits(2);
    CHECK_THAT(removed, Contains("error: --major-every is 0; expected 4, as in the run"));
    CHECK(names_in(folder.path("out")) == std::set<std::string>{"log.jsonl", "options.json", "step_00000004",
                                                                "step_00000008", "step_00000010"});
    run(folder, 1, "out", kept + Texts{"-y", "auto", "--major-every", "8"}).exits(0);
    CHECK_FALSE(fs::exists(folder.step("out", 4)));
    CHECK(fs::exists(folder.step("out", 8)));
}

TEST_CASE("a failed checkpoint is reported and the next one tried; the last failure ends the run", "[run][resume]") {
    const TrainingFolder folder;
    // 100 KiB are enough for the log, not for the model.
    const Result result = folder.command(
        {"bash", "-c", "ulimit -f 100; exec \"$@\"", "bash", program("train_gpt2"), "-i", folder.path("train_*.bin"),
         "-e", "custom:l=2,h=2,c=32,t=16", "-b", "1", "-t", "16", "-x", "3", "-n", "1", "--threads", "1", "--tune=off",
         "-o", folder.path("out")});
    CHECK_THAT(result.exits(1), Contains("note: no checkpoint of step 1: ") &&
                                Contains("error: no checkpoint of step 3: ") && Contains("File too large"));
    CHECK(folder.log("out", "checkpoint_failed").size() == 2);
    CHECK(folder.log("out", "step").size() == 3);
    CHECK(names_in(folder.path("out")) == std::set<std::string>{"log.jsonl", "options.json"});
}

TEST_CASE("the Slurm script resumes from the newest checkpoint, and requeues its job before the time limit",
          "[run][resume]") {
    const TrainingFolder folder;
    folder.script("scontrol", "echo scontrol \"$@\"\n");
    const auto started = [&](int status) {
        folder.script("srun", "if [ $1 = --mpi=list ]; then echo pmix; else echo srun \"$@\"; exit " +
                              std::to_string(status) + "; fi\n");
        const std::string output = folder.command({"env", "PATH=" + folder.path() + ":" + std::getenv("PATH"),
                                                   "SLURM_JOB_ID=17", "PROGRAM=" + program("train_gpt2"), "bash",
                                                   program("../../scripts/run_slurm.sbatch"), "-o",
                                                   "out"}).exits(status);
        CHECK_THAT(output, Contains("--resume auto -o out"));
        return output.find("scontrol requeue 17") != std::string::npos;
    };
    CHECK_FALSE(started(0));
    CHECK_FALSE(started(1));
    CHECK_FALSE(started(128 + SIGTERM));
    CHECK(started(128 + SIGUSR1));
}

// At any moment, and every second time while it writes one of the next three checkpoints.
TEST_CASE("a run that is killed repeatedly loses and repeats no step", "[run][resume][ranks][mpi]") {
    const int ranks = GENERATE(1, 2);
    const bool outer = ranks > 1 && GENERATE(false, true);
    const TrainingFolder folder;
    const char* const more = std::getenv("KILLS");  // their approximate number
    const int kills = more ? std::atoi(more) : 10, steps = (outer ? 9 : 6) * kills;
    Texts flags{"-x", std::to_string(steps), "-n", "1", "-v", "2", "--shuffle", "--keep-best", "--keep-checkpoints",
                "1"};
    if (outer) flags = flags + Texts{"-d", "960", "--outer-steps", "2", "--outer-start-step", std::to_string(kills)};
    else if (ranks > 1) flags = flags + Texts{"-d", "960", "-z", "1", "--dtype", "bf16", "--stochastic-rounding"};
    run(folder, ranks, "whole", flags).exits(0);
    const Texts command = (ranks > 1 ? launcher(ranks) : Texts()) + Texts{program("train_gpt2")} +
                          last_of_each(twelve_steps(folder, "killed") + Texts{"-y", "auto"} + flags);
    const fs::path out = folder.path("killed");
    const auto writes = [&] {
        const auto names = fs::exists(out) ? names_in(out) : std::set<std::string>();
        return std::ranges::any_of(names, [](const std::string& name) { return name.ends_with(".partial"); });
    };
    // The step of the newest checkpoint, or 0.
    const auto newest = [&] {
        int newest = 0;
        for (const std::string& name : fs::exists(out) ? names_in(out) : std::set<std::string>())
            if (name.starts_with("step_")) newest = std::max(newest, std::stoi(name.substr(5)));
        return newest;
    };
    std::mt19937 engine(3);
    int killed = 0, exit_code = -1;
    unsigned longer = 1;  // grows if a start has saved nothing, and shrinks if it has come far
    for (int start = 0; start < 10 * kills && exit_code != 0; ++start) {
        const int before = newest();
        Process process(command, folder.path("killed" + std::to_string(start) + ".txt"));
        std::vector<pid_t> victims{process.id()};
        if (ranks > 1) {  // mpirun may hang if they are killed while MPI starts
            process.prints("communication: ");
            victims = processes_with({out}, "OMPI_COMM_WORLD_RANK=");
        }
        usleep(20000 + engine() % 60000 * longer);
        // On a busy machine the loops miss checkpoints.
        const auto far = [&] { return process.ended() || newest() > before + steps / kills; };
        for (unsigned left = start % 2 ? 1 + engine() % 3 : 0; left > 0 && !far(); --left) {
            while (writes() && !far()) {}
            while (!writes() && !far()) {}
        }
        for (const pid_t victim : victims) kill(victim, SIGKILL);
        exit_code = process.exit_code();
        CAPTURE(exit_code, process.output());
        REQUIRE((exit_code == 0 || exit_code == -SIGKILL || ranks > 1));
        REQUIRE(process.output().find("error: ") == std::string::npos);
        killed += exit_code != 0;
        const int made = newest() - before;
        longer = made == 0 ? longer + 1 : made > steps / kills ? std::max(longer / 2, 1u) : longer;
        if (fs::is_symlink(folder.path("killed/best"))) REQUIRE(fs::exists(folder.path("killed/best/manifest.json")));
    }
    CAPTURE(ranks, outer, killed);
    REQUIRE(exit_code == 0);
    CHECK(killed >= kills / 3);
    CHECK(fs::read_symlink(folder.path("killed/best")) == fs::read_symlink(folder.path("whole/best")));
    CHECK(bytes_of(folder.step("killed", steps)) == bytes_of(folder.step("whole", steps)));
    CHECK(steps_of(folder, "killed") == steps_of(folder, "whole"));
}
