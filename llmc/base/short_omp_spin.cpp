// short_omp_spin.cpp - restarts the program with a setting of GNU's OpenMP library
#include "llmc/base/short_omp_spin.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "llmc/base/ignored_signals.h"

namespace llmc {

// Iterations of the spin loop of a waiting thread, 20 to 50 ns each on current processors. With 2000, a step of 124M
// took up to 15 % longer than with threads that only spin, on two otherwise idle cores; with 10000, a step of the
// quickstart took 1.7 times as long as with threads that sleep, concurrently with several compilers.
constexpr const char* kSpinCount = "6000";

void reexec_with_short_omp_spin(char** argv) {
    constexpr const char* kSetting = "GOMP_SPINCOUNT";
    if (std::getenv(kSetting) || std::getenv("OMP_WAIT_POLICY")) return;
    std::error_code unknown;
    // the real path: the name of the link would become the name of the process
    const auto program = std::filesystem::read_symlink("/proc/self/exe", unknown);
    if (unknown || setenv(kSetting, kSpinCount, 1) != 0) return;
    ignore_signals_again();
    execv(program.c_str(), argv);
    unsetenv(kSetting);
}

}  // namespace llmc
