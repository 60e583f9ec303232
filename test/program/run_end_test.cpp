// run_end_test.cpp - whatever ends a run: the checkpoint that is being written is completed, the log has its end, and
// an error of all ranks ends MPI in order. Faults and slow disks are libraries that are loaded before the program
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <thread>

#include "kernels/device/memory.h"
#include "test/support/catch.h"
#include "test/support/processes.h"
#include "test/support/run_support.h"

using namespace test;
using namespace std::chrono_literals;

namespace {

using Strings = std::vector<std::string>;

// Makes a checkpoint take seconds.
constexpr const char* kSlowFsync = R"(
#include <sys/syscall.h>
#include <unistd.h>
extern "C" int fsync(int file) { usleep(400000); return int(syscall(SYS_fsync, file)); }
)";

// oneDNN has no memory once the file $FAULT exists: on rank 1, or without a launcher.
constexpr const char* kNoMemory = R"(
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
extern "C" int dnnl_primitive_execute(const void* primitive, void* stream, int arguments, const void* list) {
    const char* rank = std::getenv("OMPI_COMM_WORLD_RANK");
    if (!rank) rank = std::getenv("PMI_RANK");
    if ((!rank || std::strcmp(rank, "1") == 0) && access(std::getenv("FAULT"), F_OK) == 0) return 1;
    static const auto execute = reinterpret_cast<int (*)(const void*, void*, int, const void*)>(
        dlsym(RTLD_NEXT, "dnnl_primitive_execute"));
    return execute(primitive, stream, arguments, list);
}
)";

// Two ranks of a machine at a time, and a line before MPI is finalized. Ranks wait for each other in MPI_Finalize, and
// mpirun ends the others when the first has ended, so a line after it may be lost.
constexpr const char* kTwoRanksAMachine = R"(
#include <mpi.h>
extern "C" int MPI_Comm_split_type(MPI_Comm comm, int, int key, MPI_Info, MPI_Comm* machine) {
    int rank = 0;
    MPI_Comm_rank(comm, &rank);
    return PMPI_Comm_split(comm, rank / 2, key, machine);
}
extern "C" int MPI_Finalize() {
    if (write(2, "finalizing\n", 11) != 11) return MPI_ERR_OTHER;
    return PMPI_Finalize();
}
)";

// The program with a library of these sources, on one rank or on several.
class Preloaded {
public:
    Preloaded(const TrainingFolder& folder, const std::string& compiler, const Strings& sources) : folder_(folder) {
        std::string command = compiler + " -shared -fPIC -ldl -o " + folder.path("library.so");
        for (std::size_t i = 0; i < sources.size(); ++i) {
            const std::string file = folder.path("library" + std::to_string(i) + ".cpp");
            std::ofstream(file) << "#include <unistd.h>\n" << sources[i];
            command += ' ' + file;
        }
        REQUIRE(std::system(command.c_str()) == 0);
    }
    Process start(int ranks, const Strings& more) const {
        Strings all;
        if (ranks > 1) all = {"mpirun", "--bind-to", "none", "--oversubscribe", "-np", std::to_string(ranks)};
        all.insert(all.end(), {"env", "LD_PRELOAD=" + folder_.path("library.so"), "FAULT=" + folder_.path("fault"),
                               program("train_gpt2")});
        const Strings flags = folder_.flags({"-v", "0", "--tune=off", "-o", folder_.path("out")});
        all.insert(all.end(), flags.begin(), flags.end());
        all.insert(all.end(), more.begin(), more.end());
        return Process(all, folder_.path("output.txt"));
    }

private:
    const TrainingFolder& folder_;
};

// Every step multiplies the weights by 1 - 1e-2 * 300 = -2: the first gradients that are not finite come in steps 16
// to 19, and ten of them before step 30.
const Strings kDiverges{"-x", "400", "-k", "constant", "-u", "0", "--weight-decay", "300", "--grad-clip", "0"};

int count(const std::string& text, const std::string& what) { return JobResult{0, 0, text}.count(what); }

bool is_complete(const TrainingFolder& folder, int step) {
    char name[32];
    std::snprintf(name, sizeof name, "out/step_%08d", step);
    return fs::exists(folder.path(name) + "/manifest.json");
}

int entries_of(const TrainingFolder& folder) {
    return int(std::distance(fs::directory_iterator(folder.path("out")), fs::directory_iterator()));
}

// The last step before the loss rises above ln(257) + 1.
int last_good(const TrainingFolder& folder) {
    int good = 0;
    for (const auto& step : folder.log("out", "step")) {
        if (!step["loss"].is_number() || step["loss"] > 6.549) break;
        good = step["step"];
    }
    return good;
}

}  // namespace

TEST_CASE("a diverged run completes the checkpoint that is being written, logs its end and can be resumed",
          "[run][ranks][mpi]") {
    const int ranks = GENERATE(1, 2);
    if (ranks > 1) skip_without_mpi();
    const TrainingFolder folder;
    const Preloaded slow(folder, "c++", {kSlowFsync});
    Strings flags = kDiverges;
    flags.insert(flags.end(), {"-n", "15"});
    Process run = slow.start(ranks, flags);
    const int exit_code = run.exit_code();
    const std::string output = run.output();
    CAPTURE(ranks, output);
    CHECK(exit_code == 1);
    CHECK(count(output, "error: ") == 1);
    const auto skips = folder.log("out", "skip");
    REQUIRE(skips.size() >= 10);
    const int last = skips.back()["step"], first = last - int(skips.size()) + 1;
    // The only checkpoint was saved while the loss rose.
    CHECK_THAT(output, Contains("error: the loss or gradient norm was not finite for 10 steps in a row, up to step " +
                                std::to_string(first + 9)) &&
                           Contains("is not saved; start again with a lower --lr or more --warmup-steps"));
    CHECK(is_complete(folder, 15));
    CHECK(entries_of(folder) == 3);  // that, log and options: the diverged model is not saved
    REQUIRE(folder.log("out", "checkpoint").size() == 1);
    REQUIRE(folder.log("out", "end").size() == 1);
    CHECK(folder.log("out", "end")[0]["reason"] == "error");
    const Strings on = folder.flags({"-v", "0", "--tune=off", "-o", folder.path("out"), "-y", "auto", "-x", "17", "-k",
                                     "constant", "-u", "0", "--lr", "1e-6"});
    const Result resumed = ranks > 1 ? folder.run_ranks(ranks, on) : folder.run(on);
    CAPTURE(resumed.output);
    CHECK(resumed.exit_code == 0);
    CHECK_THAT(resumed.output, Contains("resuming after step 15/17") && !Contains("update skipped"));
}

TEST_CASE("checkpoints of a model that may have diverged do not replace those before the loss rose", "[run]") {
    const TrainingFolder folder;
    Strings flags = folder.flags({"-v", "0", "--tune=off", "-n", "1", "--keep-checkpoints", "1", "-o",
                                  folder.path("out")});
    flags.insert(flags.end(), kDiverges.begin(), kDiverges.end());
    const Result run = folder.run(flags);
    CHECK(run.exit_code == 1);
    const auto skips = folder.log("out", "skip");
    REQUIRE(skips.size() == 10);
    const int first = skips[0]["step"];
    CHECK(is_complete(folder, last_good(folder)));
    CHECK(is_complete(folder, first + 8));
    CHECK(entries_of(folder) == 4);  // these two, the log and the options
    // With other options a resumed run has all ten steps again, and may be mended; with the same ones it ends.
    const auto resume = [&](const Strings& more) {
        Strings all = folder.flags({"-v", "0", "--tune=off", "-o", folder.path("out"), "-y", "auto", "-k", "constant",
                                    "-u", "0", "--weight-decay", "300", "--grad-clip", "0"});
        all.insert(all.end(), more.begin(), more.end());
        return folder.run(all);
    };
    const std::string end = std::to_string(first + 13);
    const Result lower = resume({"-x", end, "--lr", "1e-5", "--keep-checkpoints", "1"});
    CAPTURE(run.output, lower.output);
    CHECK(lower.exit_code == 1);
    CHECK_THAT(lower.output, Contains("error: the run ends with a model that may have diverged: the last loss or "
                                      "gradient norm is not finite; its checkpoint has replaced no older one"));
    CHECK(folder.log("out", "end").back()["reason"] == "error");
    CHECK(is_complete(folder, first + 13));
    CHECK(is_complete(folder, first + 8));
    CHECK_THAT(resume({"-x", end, "--lr", "1e-5", "--keep-checkpoints", "1"}).output,
               Contains("error: the run ends with a model that may have diverged"));
}

TEST_CASE("a run that ends with a model that may have diverged fails, and names a checkpoint before it", "[run]") {
    const TrainingFolder folder;
    Strings flags = folder.flags(kDiverges);
    flags.insert(flags.end(), {"-v", "1", "--tune=off", "-n", "1", "--keep-checkpoints", "1", "--log-every", "9", "-o",
                               folder.path("out"), "-x", "20"});
    flags.erase(std::ranges::find(flags, "400") - 1, std::ranges::find(flags, "400") + 1);
    const Result run = folder.run(flags);
    CAPTURE(run.output);
    CHECK(run.exit_code == 1);
    CHECK_THAT(run.output, Contains("error: the run ends with a model that may have diverged") &&
                               Contains("start again with a lower --lr"));
    CHECK(is_complete(folder, last_good(folder)));
    CHECK(is_complete(folder, 20));
    CHECK(folder.log("out", "end").at(0)["reason"] == "error");
}

TEST_CASE("a run whose loss stays high says so once, and a learning rate of 0 is named", "[run]") {
    const TrainingFolder folder;
    const Result high = folder.run(folder.flags({"-v", "0", "--tune=off", "--lr", "3", "-x", "110", "-o",
                                                 folder.path("out")}));
    CAPTURE(high.output);
    CHECK(high.exit_code == 0);
    CHECK(count(high.output, "warning: the loss has been above 6.549 for 50 steps") == 1);
    REQUIRE(folder.log("out", "warning").size() == 1);
    CHECK(folder.log("out", "warning")[0]["kind"] == "loss is high");
    const Result zero = folder.run(folder.flags({"-v", "0", "--tune=off", "--lr", "0", "-x", "2"}));
    CHECK(zero.exit_code == 0);
    CHECK_THAT(zero.output, Contains("note: --lr is 0: no step changes the weights\n"));
}

TEST_CASE("an error of this rank alone completes the checkpoint that is being written", "[run][ranks][mpi]") {
    const int ranks = GENERATE(1, 2);
    if (!device::memory_is_host_memory()) return;
    if (ranks > 1) skip_without_mpi();
    const TrainingFolder folder;
    const Preloaded library(folder, "c++", {kSlowFsync, kNoMemory});
    Process run = library.start(ranks, {"-x", "100000000", "-n", "5000000"});
    const auto comes = [](auto&& awaited) {
        for (int i = 0; i < 3000 && !awaited(); ++i) std::this_thread::sleep_for(10ms);
        return awaited();
    };
    REQUIRE(comes([&] { return run.output().find("step 3/") != std::string::npos; }));
    run.signal(SIGUSR2);  // mpirun forwards it
    int step = 0;
    REQUIRE(comes([&] {
        for (const auto& entry : fs::directory_iterator(folder.path("out")))
            if (entry.path().extension() == ".partial")
                step = std::atoi(entry.path().stem().string().substr(6).c_str());
        return step > 0 && fs::exists(folder.path("out/.step_" + std::string(8 - std::to_string(step).size(), '0') +
                                                  std::to_string(step) + ".partial/trainer_state.json"));
    }));
    write_bytes(folder.path("fault"), "");
    const int exit_code = run.exit_code(60s);
    CAPTURE(ranks, step, run.output());
    CHECK(exit_code == 1);
    CHECK(count(run.output(), "error: ") == 1);
    CHECK_THAT(run.output(), Contains(ranks > 1 ? "error: rank 1 on " : "error: ") && Contains("could not execute"));
    CHECK(is_complete(folder, step));
    if (ranks == 1) CHECK(folder.log("out", "end").size() == 1);
}

TEST_CASE("an error of all ranks finalizes MPI, also with --onebit-hierarchical", "[run][onebit][ranks][mpi]") {
    skip_without_mpi();
    const TrainingFolder folder;
    std::string bytes = read_bytes(folder.path("train_0.bin"));
    bytes[1024 + 2 * 2000 + 1] = 2;  // a token id of 512 and more, in step 8
    write_bytes(folder.path("train_0.bin"), bytes);
    const Preloaded machines(folder, "OMPI_CXX=c++ mpicxx", {kTwoRanksAMachine});
    const Strings flags = GENERATE(Strings{}, Strings{"--optimizer", "onebit-adam", "--onebit-freeze-step", "2",
                                                      "--onebit-hierarchical"});
    Strings all = flags;
    all.insert(all.end(), {"-x", "50", "-n", "1"});
    Process run = machines.start(4, all);
    const int exit_code = run.exit_code();
    CAPTURE(flags, run.output());
    CHECK(exit_code == 1);
    CHECK(count(run.output(), "error: ") == 1);
    CHECK(count(run.output(), "finalizing\n") == 4);
    CHECK(folder.log("out", "step").size() == 7);
    CHECK(folder.log("out", "end").size() == 1);
    if (!flags.empty()) CHECK(folder.log("out", "step").back()["stage"] == "compressed");
}
