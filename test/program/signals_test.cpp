// signals_test.cpp - signals to the real program and its script: which of them end a run, early but in order; a
// checkpoint on demand; output without a reader
#include <sys/stat.h>

#include "test/support/run_support.h"

using namespace test;
using namespace std::chrono_literals;

namespace {

// A folder, and a run that takes hours.
struct LongRun : TrainingFolder {
    Texts flags_with(const Texts& more) const {
        return flags(Texts{"-x", "100000000", "-v", "0", "-o", path("out")} + more);
    }
    // A validation that takes half a minute, before the first step.
    Texts with_long_validation(const Texts& more = {}) const {
        ShardBytes(std::vector<std::uint16_t>(2'000'000, 5), 257, 256).write(path("val_0.bin"));
        return flags_with(more + Texts{"-e", "custom:l=4,h=4,c=128,t=16", "-v", "1"});
    }
    // Samples that take minutes, after the first step, if there is one.
    Texts with_long_sample(const Texts& more = {}) const {
        return flags_with(more + Texts{"-s", "1", "-g", "1000", "--samples", "1000"});
    }
    bool continues() const {
        const std::size_t steps = log("out", "step").size();
        return comes_true([&] { return log("out", "step").size() >= steps + 5; });
    }
    // The run was interrupted after `steps` updates (-1: any number), saved and said so.
    void check_saved(long long steps = -1) const {
        const auto end = log("out", "end");
        REQUIRE(end.size() == 1);
        CHECK(end[0]["reason"] == "interrupted");
        REQUIRE(log("out", "checkpoint").size() >= 1);
        const auto last = log("out", "checkpoint").back();
        CHECK(last["step"] == end[0]["steps"]);
        CHECK(fs::exists(fs::path(last["folder"].get<std::string>()) / "model.safetensors"));
        if (steps >= 0) CHECK(last["step"] == steps);
    }
};

// Of what takes a second or two on an idle machine.
int end_of(Process& process) { return process.exit_code(120s); }

// The script for one node, two ranks. `before`: shell commands to run first.
Process start_script(const TrainingFolder& folder, const Texts& flags, const std::string& before = "",
                     const std::string& after = "") {
    const std::string command =
        before + (after.empty() ? "exec " : "") + program("../../scripts/run_one_node.sh") + " \"$@\" " + after;
    return Process(Texts{"env", "PROGRAM=" + program("train_gpt2"), "RANKS=2", "bash", "-c", command, "bash"} +
                       last_of_each(flags),
                   folder.path("output.txt"));
}

}  // namespace

TEST_CASE("one interrupt that arrives as two signals ends a run once, with the model saved", "[run]") {
    const LongRun run;
    const auto [first, second] = GENERATE(std::pair(SIGINT, SIGINT), std::pair(SIGUSR1, SIGTERM));
    Process process = run.start(run.flags_with({}));
    REQUIRE(run.logs("step"));
    process.signal(first);
    std::this_thread::sleep_for(200us);  // `timeout -s INT` signals its child, then its group
    process.signal(second);
    CHECK(end_of(process) == 128 + first);
    run.check_saved();
    // The command in the last line resumes it.
    const std::string said = process.output(), mark = "\nto resume: ";
    const auto last = said.rfind(mark);
    REQUIRE(last != said.npos);
    std::string command = said.substr(last + mark.size());
    CHECK(command.find('\n') == command.size() - 1);
    const auto steps = run.log("out", "end")[0]["steps"].get<std::int64_t>();
    command.insert(command.size() - 1, " -x " + std::to_string(steps + 2));
    CAPTURE(command);
    run.command({"sh", "-c", command}).exits(0);
    CHECK(run.log("out", "end").back()["reason"] == "all steps completed");
    CHECK(run.log("out", "checkpoint").back()["step"] == steps + 2);
}

TEST_CASE("only a second Ctrl-C, a second later, ends the run without saving, and says so", "[run]") {
    const LongRun run;
    // Steps of 100,000 micro-batches, of which 1000 take 0.5 to 2 s.
    Process process = run.start(run.flags_with({"-v", "1000", "-d", "6400000", "--pad-last"}));
    REQUIRE(run.logs("val"));  // so the first step is under way
    const auto first = std::chrono::steady_clock::now();
    process.signal(SIGINT);
    std::this_thread::sleep_for(300ms);
    process.signal(SIGINT);
    process.signal(SIGTERM);
    if (std::chrono::steady_clock::now() - first > 700ms) skip("this machine is too busy to press Ctrl-C twice");
    std::this_thread::sleep_for(1800ms);
    process.signal(SIGTERM);
    std::this_thread::sleep_for(50ms);
    CHECK(run.log("out", "end").empty());
    CHECK_FALSE(process.ended());
    process.signal(SIGINT);
    CHECK(end_of(process) == 128 + SIGINT);
    CHECK_THAT(process.output(), EndsWith("error: a second Ctrl-C: ending at once, without saving\n"));
    CHECK(run.log("out", "checkpoint").empty());
}

TEST_CASE("a signal that was ignored when the program started stays ignored", "[run]") {
    const LongRun run;
    std::string preload;
    if (GENERATE(false, true)) {  // a library that handles SIGHUP from its load on, as UCX does
        preload = run.library("#include <csignal>\nvoid note(int) {}\n"
                              "[[gnu::constructor]] void load() { std::signal(SIGHUP, note); }\n");
    }
    Process process(Texts{"sh", "-c", "trap '' HUP INT USR1; LD_PRELOAD=" + preload + " exec \"$@\"", "sh",
                          program("train_gpt2")} + run.flags_with({}), run.path("output.txt"));
    REQUIRE(run.logs("step"));
    for (const int ignored : {SIGHUP, SIGINT, SIGUSR1}) process.signal(ignored);
    std::this_thread::sleep_for(50ms);
    CHECK(run.continues());
    process.signal(SIGTERM);
    CHECK(end_of(process) == 128 + SIGTERM);
    run.check_saved();
}

TEST_CASE("--eval-only says how it ended, and a signal ends it early", "[run]") {
    const LongRun run;
    run.run(run.flags_with({"--eval-only", "-o", run.path("whole")})).exits(0);
    CHECK(run.log("whole", "val").size() == 1);
    REQUIRE(run.log("whole", "end").size() == 1);
    CHECK(run.log("whole", "end")[0]["reason"] == "evaluated");
    const bool samples = GENERATE(false, true);
    Process process = run.start(samples ? run.with_long_sample({"--eval-only"})
                                        : run.with_long_validation({"--eval-only"}));
    REQUIRE(run.logs(samples ? "val" : "start"));
    std::this_thread::sleep_for(50ms);
    process.signal(SIGTERM);
    CHECK(end_of(process) == 128 + SIGTERM);
    REQUIRE(run.log("out", "end").size() == 1);
    CHECK(run.log("out", "end")[0]["reason"] == "interrupted");
    CHECK(run.log("out", "val").size() == (samples ? 1 : 0));
    CHECK(run.log("out", "sample").empty());
}

TEST_CASE("a signal to one rank ends validation and samples of all early; a resumed run makes them",
          "[run][ranks][mpi]") {
    const int ranks = GENERATE(1, 2);
    if (ranks > 1) skip_without_mpi();
    const LongRun run;
    const bool samples = GENERATE(false, true);
    const Texts flags = samples ? run.with_long_sample() : run.with_long_validation();
    Process process = ranks > 1 ? start_script(run, flags) : run.start(flags);
    REQUIRE(run.logs(samples ? "step" : "start"));
    std::this_thread::sleep_for(100ms);
    const auto last = ranks > 1 ? processes_with({run.path()}, "OMPI_COMM_WORLD_RANK=1") : std::vector{process.id()};
    REQUIRE(last.size() == 1);
    kill(last[0], SIGTERM);
    CHECK(end_of(process) == 128 + SIGTERM);
    CAPTURE(process.output());
    run.check_saved(samples ? 1 : 0);
    CHECK(run.log("out", "val").empty());
    CHECK(run.log("out", "sample").empty());

    const Texts again{"-y", "auto", "-x", "2", "--val-tokens", "64", "--samples", "1", "-g", "5"};
    run.run_on(ranks, flags + again).exits(0);
    using Steps = std::vector<double>;
    CHECK(numbers(run.log("out", "val"), "step") == (samples ? Steps{} : Steps{0, 1, 2}));
    CHECK(numbers(run.log("out", "sample"), "step") == (samples ? Steps{1, 2} : Steps{}));
}

TEST_CASE("SIGUSR2 saves, and the run continues", "[run]") {
    const LongRun run;
    Process process = run.start(run.flags_with({}));
    REQUIRE(run.logs("step"));
    const auto saved = [&] { return run.log("out", "checkpoint").size(); };
    process.signal(SIGUSR2);
    std::this_thread::sleep_for(100ms);
    process.signal(SIGUSR2);  // the same request again, because ranks receive it one after the other
    REQUIRE(run.logs("checkpoint"));
    CHECK(run.continues());
    std::this_thread::sleep_for(1100ms);
    CHECK(saved() == 1);
    process.signal(SIGUSR2);
    CHECK(comes_true([&] { return saved() == 2; }));
    process.signal(SIGTERM);
    CHECK(end_of(process) == 128 + SIGTERM);
    run.check_saved();
    CHECK(saved() == 3);
}

TEST_CASE("a run, or its script, continues if the reader of its output is gone, or never existed",
          "[run][ranks][mpi]") {
    const LongRun run;
    SECTION("it is interrupted") {
        REQUIRE(mkfifo(run.path("fifo").c_str(), 0600) == 0);
        const int reader = open(run.path("fifo").c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
        Process process(Texts{program("train_gpt2")} + run.flags_with({}), run.path("fifo"));
        REQUIRE(run.logs("start"));
        close(reader);
        REQUIRE(run.logs("step"));
        CHECK(run.continues());
        process.signal(SIGINT);
        CHECK(end_of(process) == 128 + SIGINT);
        run.check_saved();
    }
    SECTION("it ends by itself") {
        const std::string head = "| head -n 1; exit ${PIPESTATUS[0]}";
        const auto [to, by_script] = GENERATE_COPY(
            table<std::string, bool>({{head, false}, {">&-", false}, {">/dev/full", false}, {head, true}}));
        if (by_script) skip_without_mpi();
        CAPTURE(to, by_script);
        const Texts flags = run.flags_with({"-x", "300"}), shell{"bash", "-c", "\"$@\" " + to, "bash"};
        Process process = by_script ? start_script(run, flags, "", to)
                                    : Process(shell + Texts{program("train_gpt2")} + flags, run.path("output.txt"));
        CHECK(end_of(process) == 0);
        CHECK(run.log("out", "step").size() == 300);  // and no line that is not an event
        CHECK(run.log("out", "end").size() == 1);
        if (by_script) CHECK_THAT(process.output(), StartsWith("device: ") && !Contains("mpirun"));
    }
}

TEST_CASE("the script loses no signal while mpirun starts the ranks, and no process survives", "[run][ranks][mpi]") {
    skip_without_mpi();
    const LongRun run;
    Process script = start_script(run, run.flags_with({}));
    // as soon as mpirun exists
    REQUIRE(comes_true([&] { return !processes_with({run.path("out"), "--bind-to"}).empty(); }));
    std::this_thread::sleep_for(20ms);
    script.signal(SIGTERM);
    const int exit_code = end_of(script);
    CAPTURE(script.output());
    CHECK(exit_code == 128 + SIGTERM);
    CHECK(comes_true([&] { return processes_with({run.path("out")}).empty(); }));
}

// An mpirun whose ranks are busy: it handles a request to end late, or never.
TEST_CASE("the script repeats a request to end, and kills only on a second Ctrl-C a second later",
          "[run][ranks][mpi]") {
    skip_without_mpi();
    const LongRun run;
    const bool never = GENERATE(false, true);
    run.script("mpirun", "trap '' USR1\ntrap 'exit 1' TERM\necho ready\nsleep 0.3\n" +
                             std::string(never ? "" : "trap 'exit 138' USR1\n") +
                             "for i in {1..400}; do sleep 0.05; done\n");
    Process script = start_script(run, {"-x", "1"}, "PATH=" + run.path() + ":$PATH; ");
    REQUIRE(script.prints("ready"));
    script.signal(SIGINT);
    std::this_thread::sleep_for(200us);
    script.signal(SIGINT);  // as from `timeout`
    std::this_thread::sleep_for(50ms);
    script.signal(SIGTERM);
    if (never) {
        std::this_thread::sleep_for(2500ms);
        CHECK_FALSE(script.ended());
        script.signal(SIGINT);
    }
    CHECK(end_of(script) == 128 + SIGINT);
    CHECK((script.output().find("error: a second Ctrl-C") != std::string::npos) == never);
}
