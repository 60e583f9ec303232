// timed_run_test.cpp - runs whose length is a time (--max-minutes alone): the learning rate follows the share of the
// time that is used, also if the machine becomes slower, and a resumed run continues with it. The clock is a library
// that is loaded before the program: it stands still, except that it adds a constant for every step and validation
#include <cmath>

#include "llmc/run/control/interrupt.h"
#include "llmc/run/control/schedule.h"
#include "test/support/run_support.h"

using namespace test;

namespace {

constexpr const char* kLateClock = "a clock that is set by reports, which are a step late on a GPU";

// A step takes 1/8 s. After the first $FAST steps it takes 1 s; after step $STOP the program gets a SIGTERM. A
// validation takes 1/2 s. These times and their sums are exact in binary.
constexpr const char* kClock = R"(
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <string_view>
#include <sys/syscall.h>
#include <ctime>
#include <unistd.h>
static std::atomic<long> now{1000'000'000'000}, steps{0};
static long number(const char* name) { const char* text = getenv(name); return text ? atol(text) : 1'000'000; }
extern "C" int clock_gettime(clockid_t clock, timespec* time) {
    if (clock != CLOCK_MONOTONIC) return int(syscall(SYS_clock_gettime, clock, time));
    *time = {now / 1'000'000'000, now % 1'000'000'000};
    return 0;
}
extern "C" ssize_t write(int file, const void* bytes, size_t size) {
    const std::string_view text(static_cast<const char*>(bytes), size);
    if (text.find("\"event\":\"step\"") != text.npos) {
        now += ++steps > number("FAST") ? 1'000'000'000 : 125'000'000;
        if (steps == number("STOP")) {
            kill(getpid(), SIGTERM);
            usleep(2'000'000);  // until the program's thread has received it, also on a busy machine
        }
    }
    if (text.find("\"event\":\"val\"") != text.npos) now += 500'000'000;
    return syscall(SYS_write, file, bytes, size);
}
)";

// Runs with the clock, in a folder.
struct TimedRun {
    TrainingFolder folder;
    std::string clock = folder.library(kClock);
    Result run(const Texts& environment, const Texts& more) const {
        return folder.command(Texts{"env", "LD_PRELOAD=" + clock} + environment + Texts{program("train_gpt2")} +
                              folder.flags(Texts{"--tune=off", "--val-tokens", "64"} + more));
    }
};

// {step: what the step event has of it}
std::map<int, nlohmann::json> numbers_of_steps(const TrainingFolder& folder, const std::string& out) {
    std::map<int, nlohmann::json> numbers;
    for (const auto& step : folder.log(out, "step"))
        numbers[step["step"]] = {step.at("progress"), step["lr"], step["loss"], step["grad_norm"]};
    return numbers;
}

}  // namespace

TEST_CASE("a run of --max-minutes reaches its final learning rate, also if the machine becomes slower",
          "[run][timed]") {
    if (device::is_gpu()) skip(kLateClock);
    const TimedRun timed;
    const TrainingFolder& folder = timed.folder;
    const std::string output = timed.run({"FAST=20"}, {"--max-minutes", "0.2", "-v", "10", "-q", "0.25", "-s", "1000",
                                                       "--sample-tokens", "2", "-o", folder.path("out")}).exits(0);
    const auto steps = folder.log("out", "step");
    // 2.5 s of fast steps, three validations of 0.5 s (before the first step, after 10 and 20), and 12 - 0.5 s for all
    // of it: 8 slow steps until then.
    REQUIRE(steps.size() == 28 + 1);
    CHECK(steps.back()["lr"] == 0.25f * 1e-2f);
    CHECK(steps.back().at("progress") == 1);
    CHECK(steps[0].at("progress") == 0);  // the validation before it is not part of the training
    CHECK(std::fabs(steps[1].at("progress").get<double>() - 0.125 / 11) < 1e-12);
    const llmc::Schedule schedule{.peak = 1e-2, .final_fraction = 0.25};
    for (const auto& step : steps)
        CHECK(step["lr"].get<float>() ==
              float(schedule.learning_rate({.relative = 1}, step["progress"])));
    CHECK(folder.log("out", "val").size() == 4);
    CHECK(folder.log("out", "sample").size() == 1);
    CHECK(folder.log("out", "start")[0].contains("total_steps") == false);
    const auto end = folder.log("out", "end")[0];
    CHECK(end["reason"] == "out of time (--max-minutes)");
    CHECK(end["seconds"].get<double>() == 13.5);  // the last step begins within the time, and this clock ends it later
    CHECK_THAT(output, Contains("training: 0.2 minutes, steps of 64 tokens") && Contains("\nstep 1      | ") &&
                       Contains("0:11\n") && Contains(" -y auto --max-minutes 0.4\n"));
    // All the time is used; with more of it the run continues at its share.
    CHECK_THAT(timed.run({}, {"-o", folder.path("out"), "-y", "auto"}).exits(0),
               Contains("note: the checkpoint has used all of --max-minutes 0.2; to train further (the learning rate "
                        "rises from 0.0025 to "));
    CHECK(folder.log("out", "step").size() == 29);
    CHECK_THAT(
        timed.run({}, {"-o", folder.path("out"), "-y", "auto", "--max-minutes", "0.25", "-n", "2"}).exits(0),
        Contains("changed: --max-minutes 0.2 -> 0.25") && Contains("; the schedule is now of 0.25 minutes"));
    CHECK(folder.log("out", "step")[29].at("progress").get<double>() > 11.5 / 14.5);
    CHECK(folder.log("out", "step").back()["lr"] == 0.25f * 1e-2f);
    const std::string saved = folder.log("out", "checkpoint").back()["folder"];
    const auto state = nlohmann::json::parse(read_bytes(saved + "/trainer_state.json"));
    const auto& tasks = state["tasks"];
    CHECK((state["seconds"]["used"] >= 15 && tasks["validation"]["seconds"] == 0.5));
    CHECK(tasks["checkpoint"]["seconds"] > 0);
}

TEST_CASE("the time left has the tasks to come, and a note says that evaluation takes a tenth of a run or more",
          "[run][timed]") {
    if (device::is_gpu()) skip(kLateClock);
    const TimedRun timed;
    const auto run = [&](const std::string& out, const Texts& more) {
        return timed.run({}, more + Texts{"-o", timed.folder.path(out)});
    };
    const Result often = run("often", {"-x", "40", "-v", "2"});
    Texts left;  // after steps 3, 5 and 40; by this clock steps take no time themselves
    for (const std::string& line : lines_of(often.exits(0)))
        for (const char* const step : {"step 3/40 ", "step 5/40 ", "step 40/40 "})
            if (line.starts_with(step) && line.find("validation") == line.npos && line.find("saved") == line.npos)
                left.push_back(line.substr(line.size() - 4));
    CHECK(left == Texts{"0:10", "0:09", "0:01"});
    CHECK_THAT(often.output, Contains("of this run, most of it validation: use fewer --val-tokens or a larger "
                                      "--val-every\n"));
    CHECK(often.count("note: evaluation takes 0:1") == 1);
    CHECK_THAT(run("timed", {"--max-minutes", "0.2", "-v", "2"}).exits(0), Contains("note: evaluation takes 0:1"));
    CHECK_THAT(run("seldom", {"-x", "400", "-v", "50"}).exits(0), !Contains("note: evaluation"));  // 4.5 s of 50 s
}

namespace {

// Stops the process with this in its environment, once the run has made a step, for so long that the run, whose clock
// may be late, counts it as a stop; the run ends with a warning.
void stop_once(const TrainingFolder& folder, Process& run, const std::string& in_environment) {
    REQUIRE(folder.logs("step"));
    const auto stopped = processes_with({folder.path()}, in_environment);
    REQUIRE(stopped.size() == 1);
    kill(stopped[0], SIGSTOP);
    std::this_thread::sleep_for(std::chrono::duration<double>(llmc::Interrupt::kStop + 2));
    kill(stopped[0], SIGCONT);
    CHECK(run.exit_code(std::chrono::seconds(30)) == 0);
    CHECK_THAT(run.output(), Contains("warning: a process of the run was stopped for about 0:0"));
}

}  // namespace

TEST_CASE("one warning says that a rank was stopped, and times include it", "[run][timed][ranks][mpi]") {
    const TrainingFolder folder;
    Process ranks(launcher(2) + Texts{program("train_gpt2")} +
                      folder.flags({"--max-minutes", "0.2", "-v", "0", "-o", folder.path("out")}),
                  folder.path("output.txt"));
    stop_once(folder, ranks, "OMPI_COMM_WORLD_RANK=1");
    const auto warnings = folder.log("out", "warning");
    CHECK(std::ranges::count(warnings, "stopped", [](const auto& one) { return one["kind"]; }) == 1);
    CHECK(folder.log("out", "end")[0]["seconds"].get<double>() > 11);
}

TEST_CASE("a stop within a validation does not make the next ones longer", "[run][timed]") {
    const TrainingFolder folder;
    ShardBytes(std::vector<std::uint16_t>(50'000, 1), 257, 256).write(folder.path("long.bin"));
    Process run = folder.start(folder.flags({"--max-minutes", "0.2", "-j", folder.path("long.bin"), "-v", "1", "-o",
                                             folder.path("out")}));
    stop_once(folder, run, "");
    CHECK(folder.log("out", "end")[0]["seconds"].get<double>() > 11);
}

TEST_CASE("a resumed run of --max-minutes is bit-identical to an uninterrupted one with the same times",
          "[run][resume][timed]") {
    if (device::is_gpu()) skip(kLateClock);
    const TimedRun timed;
    const TrainingFolder& folder = timed.folder;
    const auto run = [&](const Texts& environment, const char* out) {
        return timed.run(environment, {"--max-minutes", "0.1", "-v", "20", "-o", folder.path(out)});
    };
    run({}, "whole").exits(0);
    run({"STOP=9"}, "parts").exits(128 + SIGTERM);
    const auto first = folder.log("parts", "step").size();
    CHECK((first >= 9 && first < 30));
    CHECK_THAT(timed.run({}, {"-o", folder.path("parts"), "-y", "auto"}).exits(0), !Contains("changed: "));
    const auto expected = numbers_of_steps(folder, "whole");
    CHECK(expected.size() > 30);
    CHECK(numbers_of_steps(folder, "parts") == expected);
    CHECK(folder.model("whole", std::ssize(expected)) == folder.model("parts", std::ssize(expected)));
}
