// memory_test.cpp - the real program uses the memory of its plan, up to its peak: a save, or loading weights
#include <algorithm>
#include <thread>

#include "kernels/device/device.h"
#include "test/support/catch.h"
#include "test/support/processes.h"
#include "test/support/run_support.h"

using namespace test;

namespace {

// The number of MiB after a word at the start of a line, as in "  total   12.5 MiB" or "VmHWM:  512 kB"; 0: not found.
double number_after(const std::string& text, const std::string& word) {
    const auto at = text.find('\n' + word);
    return at == std::string::npos ? 0 : std::atof(text.c_str() + at + 1 + word.size());
}

// For all processes of the program that write to `out`.
std::vector<double> peaks_in_mib(const std::string& out) {
    std::vector<double> peaks;
    std::error_code gone;
    for (const auto& entry : fs::directory_iterator("/proc")) {
        if (fs::read_symlink(entry.path() / "exe", gone) != program("train_gpt2")) continue;
        std::ifstream command(entry.path() / "cmdline", std::ios::binary), status(entry.path() / "status");
        const auto all_of = [](std::ifstream& in) { return std::string(std::istreambuf_iterator<char>(in), {}); };
        if (all_of(command).find(out) == std::string::npos) continue;
        if (const double kib = number_after(all_of(status), "VmHWM:")) peaks.push_back(kib / 1024);
    }
    return peaks;
}

// Trains until a model has been saved twice, and compares the peak of every rank with the plan of rank 0, whose memory
// is at least that of the others.
void check_peaks(const TrainingFolder& folder, int ranks, std::vector<std::string> more) {
    auto flags = folder.flags({"-e", "custom:l=4,h=4,c=512,t=16", "-b", "1", "-x", "1000000", "--max-minutes", "1",
                               "-n", "2", "-v", "0", "--verbose", "-o", folder.path("out")});
    flags.insert(flags.end(), more.begin(), more.end());
    flags.insert(flags.begin(), program("train_gpt2"));
    if (ranks > 1)
        flags.insert(flags.begin(), {"mpirun", "--bind-to", "none", "--oversubscribe", "-np", std::to_string(ranks)});
    Process run(flags, folder.path("output.txt"));
    for (int i = 0; i < 6000 && run.output().find("step_00000004") == std::string::npos; ++i)
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    const std::vector<double> peaks = peaks_in_mib(folder.path("out"));
    run.signal(SIGINT);
    run.exit_code();
    const std::string output = run.output();
    const double plan = number_after(output, "  total");
    CAPTURE(ranks, more, plan, peaks, output);
    CHECK(int(peaks.size()) == ranks);
    REQUIRE(plan > 100);
    const double tolerance = std::max(64.0, 0.1 * plan);
    for (const double peak : peaks) CHECK(peak < plan + tolerance);
    REQUIRE_FALSE(peaks.empty());
    CHECK(*std::max_element(peaks.begin(), peaks.end()) > plan - tolerance);
}

void skip_with_gpu() {
    if (device::is_gpu()) skip("a build for GPUs, whose plan is for GPU memory");
}

}  // namespace

TEST_CASE("the peak memory of a run equals its plan", "[run]") {
    skip_with_gpu();
    const TrainingFolder folder;
    check_peaks(folder, 1, {"--dtype", "bf16"});
}

TEST_CASE("a plan beyond the limit of the address space is refused", "[run]") {
    skip_with_gpu();
    const TrainingFolder folder;
    for (const char* const size : {"c=512", "c=32"}) {
        std::string command = "ulimit -v 400000 && exec '" + program("train_gpt2") + "'";
        for (const std::string& flag : folder.flags({"-e", "custom:l=8,h=2,t=16," + std::string(size), "-x", "1"}))
            command += " '" + flag + '\'';
        Process run({"bash", "-c", command}, folder.path("output.txt"));
        const bool fits = size == std::string("c=32");
        CHECK(run.exit_code() == (fits ? 0 : 2));
        if (!fits) CHECK_THAT(run.output(), Contains("error: --micro-batch is 4; expected a batch whose"));
    }
}

// From a limit below which the program cannot be loaded to one that is enough.
TEST_CASE("below a limit of the address space a run ends with an error that says so, or not at all", "[run]") {
    skip_with_gpu();
    const TrainingFolder folder;
    int whole = 0, refused = 0, threads = 0;
    for (int kib = 50000; whole == 0 && kib < 400000; kib += 5000) {
        std::string command = "ulimit -v " + std::to_string(kib) + " && exec '" + program("train_gpt2") + "'";
        for (const std::string& flag : folder.flags({"-x", "2", "--threads", "2", "-o", folder.path("out")}))
            command += " '" + flag + '\'';
        Process run({"bash", "-c", command}, folder.path("output.txt"));
        const int exit_code = run.exit_code();
        const std::string output = run.output();
        CAPTURE(kib, exit_code, output);
        const bool plan_refused = output.find("a batch whose memory plan") != output.npos,
                   planned = output.find(" MiB planned") != output.npos && !plan_refused;
        CHECK(exit_code < 128);
        CHECK(planned == (exit_code == 0));
        CHECK_THAT(output, !Contains("error: Resource temporarily") && !Contains("bad_alloc") && !Contains("libgomp"));
        whole += exit_code == 0;
        refused += plan_refused;
        threads += output.find("a thread of this process is not started (") != output.npos;
    }
    CHECK(whole == 1);
    CHECK(refused > 0);
    CHECK(threads > 0);
}

TEST_CASE("the peak memory of ranks that save their shards equals the plan", "[run][ranks][mpi]") {
    skip_with_gpu();
    skip_without_mpi();
    const TrainingFolder folder;
    check_peaks(folder, 2, {"--dtype", "bf16", "-z", "1"});
}
