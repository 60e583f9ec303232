// ranks_failure_test.cpp - the program under mpirun when one rank fails: no hang, one message, the exit code;
// interruption
#include <ctime>

#include "test/support/run_support.h"

using namespace test;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
namespace {

double seconds_since(Clock::time_point began) { return std::chrono::duration<double>(Clock::now() - began).count(); }

// Limit for a failing run to end on all ranks: 10 s on an idle machine. If others use the cores, what takes 50 ms of
// processor time here takes longer, and so does all that the run does.
double seconds_to_end() {
    const auto began = Clock::now();
    const std::clock_t processor = std::clock();
    while (std::clock() - processor < CLOCKS_PER_SEC / 20) {
    }
    return 10 * std::max(1.0, seconds_since(began) / 0.05);
}

// A script for "bash -c": the first `$1` of the following words are the command of rank 0, the others that of rank 1.
// mpirun's own syntax for this, with a colon, crashes mpirun of Open MPI 5.0.7.
constexpr const char* kCommandOfRank = R"(n=$1; shift
if [ "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}" = 0 ]; then exec "${@:1:n}"; else exec "${@:n+1}"; fi)";

// Two ranks with different flags, under mpirun.
class Ranks {
public:
    Ranks(const TrainingFolder& folder, const Texts& first, const Texts& second, const Texts& launcher = {},
          const std::string& second_program = program("train_gpt2"))
        : marker_(folder.path()) {
        skip_without_mpi();
        Texts all = Texts{"mpirun", "--oversubscribe"} + launcher +
                    Texts{"-np", "2", "bash", "-c", kCommandOfRank, "bash", std::to_string(first.size() + 1)} +
                        Texts{program("train_gpt2")} + first + Texts{second_program} + second;
        process_.emplace(all, folder.path("output.txt"));
    }
    ~Ranks() {
        if (!ended_)
            for (const int rank : {0, 1})
                if (const pid_t process = process_of(rank)) kill(process, SIGKILL);
    }
    Process& launcher() { return *process_; }

    // The process of one rank; 0: none.
    pid_t process_of(int rank) const {
        const auto found = processes_with({marker_}, "OMPI_COMM_WORLD_RANK=" + std::to_string(rank));
        return found.empty() ? 0 : found[0];
    }
    bool trains() const { return process_->prints("step 3/", 5min); }
    // Waits for the end, and kills a run that takes too long. `began`: the time of the event that should end it.
    Result end(Clock::time_point began = Clock::now()) {
        const int exit_code = process_->exit_code();
        const double took = seconds_since(began), limit = seconds_to_end();
        ended_ = true;
        while (seconds_since(began) < limit && (process_of(0) || process_of(1)))
            std::this_thread::sleep_for(10ms);
        CHECK(process_of(0) + process_of(1) == 0);
        return {exit_code, process_->output(), took};
    }

private:
    std::string marker_;  // occurs only in the command lines of this run's processes
    std::optional<Process> process_;
    bool ended_ = false;
};

Texts endless(const TrainingFolder& folder) {
    return folder.flags({"-x", "100000000", "-v", "0", "-o", folder.path("out")});
}

void check_refused(const TrainingFolder& folder, const Texts& first, const Texts& second,
                   const std::string& because, const std::string& second_program = program("train_gpt2")) {
    Ranks ranks(folder, first, second, {}, second_program);
    const Result ended = ranks.end();
    CHECK(ended.seconds < seconds_to_end());
    CHECK(ended.count("error: ") == 1);
    CHECK_THAT(ended.exits(2), Contains(because));
    CHECK_FALSE(fs::exists(folder.path("out")));
}

}  // namespace

TEST_CASE("ranks that were started differently are refused before anything is written", "[run][ranks][mpi]") {
    const TrainingFolder folder;
    const auto with = [&](const Texts& more) {
        return folder.flags(Texts{"-x", "3", "-v", "0", "-o", folder.path("out")} + more);
    };
    check_refused(folder, with({"--seed", "1"}), with({"--seed", "2"}), " has --seed 2, rank 0 on ");
    write_bytes(folder.path("build"), read_bytes(program("train_gpt2")) + "other");
    fs::permissions(folder.path("build"), fs::perms::owner_all);
    check_refused(folder, with({}), with({}), " has build ", folder.path("build"));
    check_refused(folder, with({}), with({"--wrong"}), "error: rank 1 on ");
    check_refused(folder, with({"--wrong"}), with({"--wrong"}), "error: the flag \"--wrong\" is unknown");
    // A file that one host does not have.
    check_refused(folder, with({}), with({"-i", folder.path("nowhere/train_*.bin")}),
                  "nowhere/train_*.bin\" is 0; expected at least 1");
    // The same file elsewhere is accepted.
    fs::create_directories(folder.path("other"));
    fs::copy(folder.path("train_0.bin"), folder.path("other"));
    Ranks ranks(folder, with({}), with({"-i", folder.path("other/train_*.bin")}));
    const Result ended = ranks.end();
    ended.exits(0);
    CHECK(folder.log("out", "end").size() == 1);
    // Only rank 0 reads the output folder.
    CHECK_THAT(folder.run_ranks(2, with({})).exits(2),
               Contains("error: rank 0 on ") && Contains("another run's log.jsonl") && !Contains("step 1/"));
}

TEST_CASE("ranks that write parts of checkpoints must share the output folder", "[run][ranks][mpi]") {
    const TrainingFolder folder;
    fs::create_directories(folder.path("other"));
    folder.script("elsewhere", "cd '" + folder.path("other") + "' && exec '" + program("train_gpt2") + "' \"$@\"\n");
    const auto [flags, refused] = GENERATE(table<Texts, bool>({
        {Texts{}, false}, {Texts{"-z", "1"}, true}, {Texts{"--optimizer", "muon"}, true},
        {Texts{"-z", "1", "--eval-only"}, false}}));  // which writes no checkpoints
    const Texts all = folder.flags(Texts{"-x", "1", "-v", "0", "-o", "own"} + flags);
    Ranks ranks(folder, all, all, {"-wdir", folder.path()}, folder.path("elsewhere"));
    const Result ended = ranks.end();
    ended.exits(refused ? 2 : 0);
    CHECK(ended.count("error: rank 1 on ") == int(refused));
    CHECK(ended.count("--output-dir is \"own\"; expected the folder of rank 0") == int(refused));
    CHECK(fs::exists(folder.path("own/log.jsonl")) != refused);
    CHECK(!fs::exists(folder.path("other/own")));
}

TEST_CASE("an error of rank 0 is printed once and ends the run on all ranks", "[run][ranks][mpi]") {
    const TrainingFolder folder;
    const auto flags = folder.flags({"-x", "100000000", "-n", "200", "-z", "1", "-v", "0", "-o", folder.path("out")});
    Ranks ranks(folder, flags, Texts(flags));
    REQUIRE(ranks.trains());
    fs::rename(folder.path("out"), folder.path("moved"));
    const Result ended = ranks.end();
    CHECK(ended.seconds < seconds_to_end());
    CHECK(ended.count("error: ") == 1);
    CHECK_THAT(ended.exits(1), Contains("error: rank 0 on ") && Contains("deleted or moved away"));
    CHECK_FALSE(fs::exists(folder.path("out")));
    int saved = 0;
    for (const auto& beside : fs::directory_iterator(folder.path()))
        if (beside.path().filename().string().starts_with("out.process-"))
            for (const auto& entry : fs::directory_iterator(beside)) {
                CHECK_FALSE(entry.path().extension() == ".partial");
                ++saved;
            }
    CHECK(saved == 1);
}

TEST_CASE("a killed rank ends the run on all ranks", "[run][ranks][mpi]") {
    const TrainingFolder folder;
    Ranks ranks(folder, endless(folder), endless(folder));
    REQUIRE(ranks.trains());
    const int victim = GENERATE(0, 1);
    const auto killed = Clock::now();
    kill(ranks.process_of(victim), SIGKILL);
    const Result ended = ranks.end(killed);
    CAPTURE(victim, ended.output);
    CHECK(ended.exit_code != 0);
    CHECK(ended.seconds < seconds_to_end());
    CHECK_THAT(ended.output, Contains("rank " + std::to_string(victim)) && Contains("signal 9"));  // printed by mpirun
}

TEST_CASE("the ranks wait for a stopped rank, print a note, and continue with it", "[run][ranks][mpi]") {
    const TrainingFolder folder;
    Ranks ranks(folder, endless(folder), endless(folder));
    REQUIRE(ranks.trains());
    const pid_t stopped = ranks.process_of(1);
    kill(stopped, SIGSTOP);
    CHECK(ranks.launcher().prints("note: rank 0 has waited 15 s for "));
    kill(stopped, SIGCONT);
    kill(stopped, SIGTERM);
    const Result ended = ranks.end();
    ended.exits(128 + SIGTERM);
    CHECK(folder.log("out", "end").size() == 1);
}

TEST_CASE("an interrupted run ends before the same step on all ranks and saves one checkpoint",
          "[run][ranks][mpi]") {
    const TrainingFolder folder;
    Ranks ranks(folder, endless(folder), endless(folder), {"--mca", "odls_base_sigkill_timeout", "3"});
    REQUIRE(ranks.trains());
    const auto interrupted = Clock::now();
    const bool by_mpirun = GENERATE(true, false);  // or by a signal to one rank
    if (by_mpirun) ranks.launcher().signal(SIGINT);
    else kill(ranks.process_of(1), SIGTERM);
    const Result ended = ranks.end(interrupted);
    CAPTURE(ended.output);
    CHECK(ended.seconds < seconds_to_end());
    CHECK(ended.count("error: ") == 0);
    // mpirun returns 1 for a signal that it received itself, otherwise the exit code of its processes.
    CHECK((ended.exit_code == 1 || ended.exit_code == 128 + SIGTERM));
    const auto end = folder.log("out", "end");
    // mpirun of Open MPI 5 always leaves half a second: enough to save on an idle machine.
    if (by_mpirun && end.empty() && ended.count("over MPI (Open MPI v5.") > 0)
        skip("mpirun of Open MPI 5 killed the ranks before they had saved");
    REQUIRE(end.size() == 1);
    CHECK(end[0]["reason"] == "interrupted");
    CHECK(names_in(folder.path("out")) ==
          std::set<std::string>{"log.jsonl", "options.json", folder.step("out", end[0]["steps"]).filename()});
}

TEST_CASE("the scripts report what they cannot start in one line", "[run][ranks]") {
    const TrainingFolder folder;
    write_bytes(folder.path("no_hosts"), "# name slots=N\n\n");
    const auto check_refused = [&](const std::string& script, const Texts& variables, const std::string& because) {
        const Result result = folder.command(
            Texts{"env", "-u", "HOSTFILE", "PROGRAM=" + program("train_gpt2"), "RANKS=2"} + variables +
            Texts{program("../../scripts/" + script)});
        CHECK_THAT(result.exits(2), StartsWith("error: " + because));
        CHECK(result.lines() == 1);
    };
    check_refused("run_one_node.sh", {"PROGRAM=" + folder.path("nowhere")},
                  "PROGRAM is " + folder.path("nowhere") + "; expected ");
    check_refused("run_slurm.sbatch", {"PROGRAM=" + folder.path("nowhere")},
                  "PROGRAM is " + folder.path("nowhere") + "; expected ");
    skip_without_mpi();
    for (const std::string ranks : {"two", "0", "2x"})
        check_refused("run_one_node.sh", {"RANKS=" + ranks}, "RANKS is " + ranks + "; expected ");
    for (const char* hosts : {"", "no_hosts", "nowhere"})
        check_refused("run_two_nodes.sh", {std::string("HOSTFILE=") + (*hosts ? folder.path(hosts) : "")},
                      "HOSTFILE is ");
    check_refused("run_two_nodes.sh", {}, "HOSTFILE is ");
}

TEST_CASE("the script for one node starts ranks, and saves on every signal that ends the run",
          "[run][ranks][mpi]") {
    skip_without_mpi();
    const int signal = GENERATE(SIGINT, SIGTERM, SIGUSR1, SIGHUP);
    const TrainingFolder folder;
    setenv("PROGRAM", program("train_gpt2").c_str(), 1);
    setenv("RANKS", "2", 1);
    Process script(Texts{program("../../scripts/run_one_node.sh")} + endless(folder), folder.path("output.txt"));
    CHECK(script.prints("step 3/", 5min));
    std::size_t saved_on_demand = 0;
    if (signal == SIGHUP) {  // SIGUSR2 is also passed on: all ranks save once and continue
        script.signal(SIGUSR2);
        CHECK(script.prints("| saved"));
        std::this_thread::sleep_for(100ms);  // for ranks that receive it later
        saved_on_demand = 1;
    }
    script.signal(signal);
    const auto began = Clock::now();
    CHECK(script.exit_code() == 128 + signal);
    CAPTURE(signal, script.output());
    CHECK(seconds_since(began) < seconds_to_end());
    CHECK_THAT(script.output(), Contains("communication: 2 ranks"));
    REQUIRE(folder.log("out", "end").size() == 1);
    const auto saved = folder.log("out", "checkpoint");
    REQUIRE(saved.size() == 1 + saved_on_demand);
    CHECK(saved.back()["step"] == folder.log("out", "end")[0]["steps"]);
    CHECK(fs::exists(fs::path(folder.path("out")) / saved[0]["folder"].get<std::string>()));
}

TEST_CASE("the script for one node starts a rank for each GPU that it may use", "[run][ranks]") {
    const TrainingFolder folder;
    folder.script("mpirun", "echo \"$@\"\n");
    folder.script("nvidia-smi", "printf 'GPU 0: A\\nGPU 1: B\\nGPU 2: C\\nGPU 3: D\\n'\n");
    const auto started = [&](const std::string& variables) {
        const std::string output = folder.command(
            {"env", "PATH=" + folder.path() + ":" + std::getenv("PATH"), "PROGRAM=" + program("train_gpt2"), "sh", "-c",
             variables + " exec " + program("../../scripts/run_one_node.sh") + " -x 1"}).exits(0);
        const auto at = output.find("-np ");
        REQUIRE(at != std::string::npos);
        return std::stoi(output.substr(at + 4));
    };
    CHECK(started("unset RANKS CUDA_VISIBLE_DEVICES;") == 4);
    CHECK(started("unset RANKS; CUDA_VISIBLE_DEVICES=1,3") == 2);
    CHECK(started("RANKS=3 CUDA_VISIBLE_DEVICES=1,3") == 3);
    folder.script("nvidia-smi", "exit 9\n");
    CHECK(started("unset RANKS; CUDA_VISIBLE_DEVICES=1,3,5") == 2);  // no GPU: ranks share the cores
}

TEST_CASE("every rank uses its share of the machine's cores, unless mpirun was asked to bind it", "[run][ranks][mpi]") {
    skip_without_mpi();
    const TrainingFolder folder;
    const auto dry = folder.flags({"--threads", "0", "--dry-run"});
    const auto threads_in = [](const std::string& output) {
        const auto end = output.find(" thread");
        REQUIRE(end != std::string::npos);
        return std::stoi(output.substr(output.rfind(' ', end - 1) + 1));
    };
    const auto launched = [&](const Texts& arguments) {
        return threads_in(
            folder.command(Texts{"mpirun"} + arguments + Texts{program("train_gpt2")} + dry).exits(0));
    };
    const int all = threads_in(folder.run(dry).output);
    CHECK(launched({"-np", "1"}) == all);
    CHECK(launched({"--oversubscribe", "-np", "2"}) == std::max(1, all / 2));
    CHECK(launched({"--bind-to", "none", "--oversubscribe", "-np", "2"}) == std::max(1, all / 2));
    if (all > 1) CHECK(launched({"--bind-to", "hwthread", "-np", "1"}) == 1);  // requested
}
