// memory_test.cpp - the real program uses the memory of its plan, up to its peak: a save, or loading weights
#include <algorithm>
#include <cmath>

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
    for (const pid_t process : processes_with({out})) {
        const fs::path of = "/proc/" + std::to_string(process);
        if (fs::read_symlink(of / "exe", gone) != program("train_gpt2")) continue;
        std::ostringstream status;
        status << std::ifstream(of / "status").rdbuf();
        if (const double kib = number_after(status.str(), "VmHWM:")) peaks.push_back(kib / 1024);
    }
    return peaks;
}

struct Measured {
    double plan = 0, peak = 0;
};
// Trains until a model has been saved twice, with outer steps also within a round, and compares the peak of every rank
// with the plan of rank 0, whose memory is at least that of the others.
Measured check_peaks(const TrainingFolder& folder, int ranks, const Texts& more, bool outer_steps = false) {
    const Texts flags = folder.flags({"-e", "custom:l=4,h=4,c=512,t=16", "-b", "1", "-x", "1000000", "--max-minutes",
                                      "1", "-n", "2", "-v", "0", "--verbose", "-o", folder.path("out")});
    Process run((ranks > 1 ? launcher(ranks) : Texts()) + Texts{program("train_gpt2")} + last_of_each(flags + more),
                folder.path("output.txt"));
    run.prints("step_00000004", std::chrono::minutes(1));
    for (int tries = 0; outer_steps && tries < 30; ++tries) {  // a checkpoint at the end of a round is none
        run.signal(SIGUSR2);
        if (run.prints("saved within a round", std::chrono::seconds(2))) break;
    }
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
    const double peak = *std::max_element(peaks.begin(), peaks.end());
    CHECK(peak > plan - tolerance);
    return {plan, peak};
}

void skip_with_gpu() {
    if (device::is_gpu()) skip("a build for GPUs, whose plan is for GPU memory");
}

}  // namespace

TEST_CASE("the peak memory of a run, also of ranks that save their shards, equals its plan", "[run][ranks][mpi]") {
    const int ranks = GENERATE(1, 2);
    skip_with_gpu();
    const TrainingFolder folder;
    check_peaks(folder, ranks, {"--dtype", "bf16", "-z", ranks > 1 ? "1" : "0"});
}

TEST_CASE("the memory of outer steps, also of a checkpoint within a round, is within 3 % of its plan",
          "[run][outer][ranks][mpi]") {
    skip_with_gpu();
    skip_without_mpi();
    const Measured without = check_peaks(TrainingFolder(), 2, {"--tune=off"});
    const double other = without.peak - without.plan;  // libraries
    for (const Texts& more : std::vector<Texts>{
             {}, {"--outer-bits", "4", "--outer-errors", "--outer-momentum", "0"}, {"--outer-bits", "1"}}) {
        const Texts flags = Texts{"--tune=off", "--outer-steps", "4"} + more;
        const Measured with = check_peaks(TrainingFolder(), 2, flags, true);
        CAPTURE(more, with.plan, with.peak, other);
        CHECK(std::fabs(with.peak - other - with.plan) < 0.03 * with.plan);
    }
}

TEST_CASE("a window of zstd that does not fit in memory is refused as such", "[run]") {
    const TrainingFolder folder;
    const std::string text = folder.path("a.zst");  // a window of 2^31 bytes
    write_bytes(text, std::string("\x28\xb5\x2f\xfd\0\xa8\x11\0\0hi", 11));
    const Result result = folder.command({"bash", "-c", "ulimit -v 1500000; exec \"$@\"", "bash", program("tokenize"),
                                          "-o", folder.path("shards"), text});
    CHECK_THAT(result.exits(1), Contains("a.zst is compressed with a larger window than this process has memory for"));
}
