// processes.h - ranks as processes: this program starts itself under mpirun with the name of a hidden test case, and
// checks how the job ends
#pragma once
#include <sys/wait.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "llmc/comm/communicator.h"
#include "test/support/catch.h"
#include "test/support/scratch_folder.h"

namespace test {

// Exit code and output of a program, and how long it took.
struct Result {
    int exit_code;
    std::string output;
    double seconds = 0;
    int count(const std::string& text) const {
        int times = 0;
        for (auto at = output.find(text); at != std::string::npos; at = output.find(text, at + 1)) ++times;
        return times;
    }
    int lines() const { return count("\n"); }
    // Requires this exit code. Returns the output.
    const std::string& exits(int code) const {
        CAPTURE(output);
        REQUIRE(exit_code == code);
        return output;
    }
};

// Skips the test case if ranks cannot be processes; otherwise sets the environment for mpirun.
inline void skip_without_mpi() {
    if (!llmc::why_no_mpi().empty()) skip("this build lacks " + llmc::why_no_mpi());
    if (std::system("command -v mpirun >/dev/null") != 0) skip("no mpirun");
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    setenv("OMP_WAIT_POLICY", "passive", 1);  // ranks share cores
}

// Runs a hidden case on `ranks` processes, skipped without MPI, or on a single one without mpirun; kills it after
// `seconds`, with exit code 137.
inline Result run_case(const std::string& name, int ranks, int seconds) {
    if (ranks > 0) skip_without_mpi();
    const ScratchFolder folder;
    const std::string self = std::filesystem::read_symlink("/proc/self/exe").string(),
                      output = (folder / "output").string();
    const std::string launcher = ranks > 0 ? "mpirun --bind-to none --oversubscribe -np " + std::to_string(ranks) + " "
                                           : "";
    const auto began = std::chrono::steady_clock::now();
    const std::string command = "timeout -s KILL " + std::to_string(seconds) + " " + launcher + self + " '" + name +
                                "' >" + output + " 2>&1";
    const int status = std::system(command.c_str());
    const double took = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status), read_bytes(output), took};
}

// Runs a hidden case that must pass on every rank.
inline void check_case(const std::string& name, int ranks) {
    const Result ended = run_case(name, ranks, 120);
    CAPTURE(name, ranks, ended.exits(0));
    REQUIRE(ended.count("All tests passed") == ranks);
}

}  // namespace test
