// run_end_test.cpp - whatever ends a run: the checkpoint that is being written is completed, the log has its end, and
// an error of all ranks ends MPI in order. Faults and slow disks are libraries that are loaded before the program
#include "kernels/device/memory.h"
#include "test/support/run_support.h"

using namespace test;
using namespace std::chrono_literals;

namespace {

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
#include <unistd.h>
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
#include <unistd.h>
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
Process start_with(const TrainingFolder& folder, const std::string& library, int ranks, const Texts& more) {
    return Process((ranks > 1 ? launcher(ranks) : Texts()) +
                       Texts{"env", "LD_PRELOAD=" + library, "FAULT=" + folder.path("fault"), program("train_gpt2")} +
                       folder.flags(Texts{"-v", "0", "--tune=off", "-o", folder.path("out")} + more),
                   folder.path("output.txt"));
}

// Every step multiplies the weights by 1 - 1e-2 * 300 = -2: the first gradients that are not finite come in steps 16
// to 19, on a GPU after step 19, and ten of them before twice as many.
const Texts kDiverges{"-x", "400", "-k", "constant", "-u", "0", "--weight-decay", "300", "--grad-clip", "0"};

bool is_complete(const TrainingFolder& folder, int step) {
    return fs::exists(folder.step("out", step) / "manifest.json");
}

}  // namespace

TEST_CASE("a diverged run completes the checkpoint that is being written, logs its end and can be resumed",
          "[run][ranks][mpi]") {
    const int ranks = GENERATE(1, 2);
    const TrainingFolder folder;
    CAPTURE(ranks);
    const int saved = device::is_gpu() ? 19 : 15;
    const Result run = start_with(folder, folder.library(kSlowFsync), ranks,
                                  kDiverges + Texts{"-n", std::to_string(saved)}).result();
    const std::string output = run.exits(1);
    CHECK(run.count("error: ") == 1);
    const auto skips = folder.log("out", "skip");
    REQUIRE(skips.size() >= 10);
    CHECK(skips.back()["reason"] == "loss or gradient norm not finite");
    const int last = skips.back()["step"], first = last - int(skips.size()) + 1;
    CAPTURE(first);
    // The only checkpoint was saved while the loss rose.
    CHECK_THAT(output, Contains("error: the loss or gradient norm was not finite for 10 steps in a row, up to step " +
                                std::to_string(first + 9)) &&
                           Contains("is not saved; start again with a lower --lr or more --warmup-steps"));
    CHECK(is_complete(folder, saved));
    CHECK(names_in(folder.path("out")).size() == 3);  // that, log and options: the diverged model is not saved
    REQUIRE(folder.log("out", "checkpoint").size() == 1);
    REQUIRE(folder.log("out", "end").size() == 1);
    CHECK(folder.log("out", "end")[0]["reason"] == "error");
    const Texts on = folder.flags({"-v", "0", "--tune=off", "-o", folder.path("out"), "-y", "auto", "-x",
                                   std::to_string(saved + 2), "-k", "constant", "-u", "0", "--lr", "1e-6"});
    CHECK_THAT(folder.run_on(ranks, on).exits(0),
               Contains("resuming after step " + std::to_string(saved) + "/") && !Contains("update skipped"));
}

TEST_CASE("checkpoints of a model that may have diverged do not replace those before the loss rose", "[run]") {
    const TrainingFolder folder;
    const Texts flags = folder.flags({"-v", "0", "--tune=off", "-o", folder.path("out")});
    folder.run(flags + Texts{"-n", "1", "--keep-checkpoints", "1"} + kDiverges).exits(1);
    const auto skips = folder.log("out", "skip");
    REQUIRE(skips.size() == 10);
    const int first = skips[0]["step"];
    const auto steps = folder.log("out", "step");
    const auto high = std::ranges::find_if(steps, [](const nlohmann::json& step) {
        return !step["loss"].is_number() || step["loss"] > 6.549;  // ln(257) + 1
    });
    CHECK(is_complete(folder, int(high - steps.begin())));  // the last good step
    CHECK(is_complete(folder, first + 8));
    CHECK(names_in(folder.path("out")).size() == 4);  // these two, the log and the options
    // With other options a resumed run has all ten steps again, and may be mended; with the same ones it ends.
    const auto resume = [&] {
        return folder.run(flags + Texts{"-y", "auto", "-k", "constant", "-u", "0", "--weight-decay", "300",
                                        "--grad-clip", "0", "-x", std::to_string(first + 13), "--lr", "1e-5",
                                        "--keep-checkpoints", "1"}).exits(1);
    };
    CHECK_THAT(resume(), Contains("error: the run ends with a model that may have diverged: the last loss or "
                                  "gradient norm is not finite; its checkpoint has replaced no older one"));
    CHECK(folder.log("out", "end").back()["reason"] == "error");
    CHECK(is_complete(folder, first + 13));
    CHECK(is_complete(folder, first + 8));
    CHECK_THAT(resume(), Contains("error: the run ends with a model that may have diverged"));
}

TEST_CASE("a run whose loss stays high says so once, and a learning rate of 0 is named", "[run]") {
    const TrainingFolder folder;
    const Result high = folder.run(folder.flags({"-v", "0", "--tune=off", "--lr", "3", "-x", "110", "-o",
                                                 folder.path("out")}));
    high.exits(0);
    CHECK(high.count("warning: the loss has been above 6.549 for 50 steps") == 1);
    REQUIRE(folder.log("out", "warning").size() == 1);
    CHECK(folder.log("out", "warning")[0]["kind"] == "loss is high");
    CHECK_THAT(folder.train({"-v", "0", "--tune=off", "--lr", "0", "-x", "2"}),
               Contains("note: --lr is 0: no step changes the weights\n"));
}

TEST_CASE("an error of this rank alone completes the checkpoint that is being written", "[run][ranks][mpi]") {
    const int ranks = GENERATE(1, 2);
    if (!device::memory_is_host_memory()) return;
    const TrainingFolder folder;
    Process run = start_with(folder, folder.library(std::string(kSlowFsync) + kNoMemory), ranks,
                             {"-x", "100000000", "-n", "5000000"});
    REQUIRE(run.prints("step 3/"));
    run.signal(SIGUSR2);  // mpirun forwards it
    int step = 0;
    REQUIRE(comes_true([&] {
        for (const std::string& name : names_in(folder.path("out")))
            if (name.ends_with(".partial") && fs::exists(folder.path("out/" + name + "/trainer_state.json")))
                step = std::atoi(name.substr(6).c_str());
        return step > 0;
    }));
    write_bytes(folder.path("fault"), "");
    CAPTURE(ranks, step);
    const Result ended = run.result(60s);
    CHECK_THAT(ended.exits(1), Contains(ranks > 1 ? "error: rank 1 on " : "error: ") && Contains("could not execute"));
    CHECK(ended.count("error: ") == 1);
    CHECK(is_complete(folder, step));
    if (ranks == 1) CHECK(folder.log("out", "end").size() == 1);
}

TEST_CASE("an error of all ranks finalizes MPI, also with --onebit-hierarchical", "[run][onebit][ranks][mpi]") {
    skip_without_mpi();
    const TrainingFolder folder;
    // a token id of 512 and more, in step 8
    edit(folder.path("train_0.bin"), [](std::string& bytes) { bytes[1024 + 2 * 2000 + 1] = 2; });
    const Texts flags = GENERATE(Texts{}, Texts{"--optimizer", "onebit-adam", "--onebit-freeze-step", "2",
                                                "--onebit-hierarchical"});
    CAPTURE(flags);
    const Result run = start_with(folder, folder.library(kTwoRanksAMachine, "OMPI_CXX=c++ mpicxx"), 4,
                                  flags + Texts{"-x", "50", "-n", "1"}).result();
    run.exits(1);
    CHECK(run.count("error: ") == 1);
    CHECK(run.count("finalizing\n") == 4);
    CHECK(folder.log("out", "step").size() == 7);
    CHECK(folder.log("out", "end").size() == 1);
    if (!flags.empty()) CHECK(folder.log("out", "step").back()["stage"] == "compressed");
}
