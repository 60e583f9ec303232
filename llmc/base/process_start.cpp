// process_start.cpp - records the ignored signals before the constructors of libraries run; restarts the program with a
// setting of GNU's OpenMP library
#include "llmc/base/process_start.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <iterator>

namespace llmc {
namespace {

constexpr int kSignals[] = {SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
bool ignored_at_start[std::size(kSignals)];

// Runs before the sanitizers are initialized: not instrumented, and without their sigaction().
[[gnu::no_sanitize("address", "thread", "undefined")]] void record() {
    for (std::size_t i = 0; i < std::size(kSignals); ++i) {
        unsigned long action[16] = {};  // the kernel's struct, which begins with the handler
        ignored_at_start[i] = syscall(SYS_rt_sigaction, kSignals[i], nullptr, action, 8) == 0 && action[0] == 1;
    }
}
[[gnu::section(".preinit_array"), gnu::used]] void (*const record_first)() = record;

}  // namespace

void ignore_signals_again() {
    for (std::size_t i = 0; i < std::size(kSignals); ++i)
        if (ignored_at_start[i]) std::signal(kSignals[i], SIG_IGN);
}

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
