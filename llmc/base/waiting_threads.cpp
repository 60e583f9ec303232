// waiting_threads.cpp - the program started again with a setting of GNU's OpenMP library
#include "llmc/base/waiting_threads.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>

namespace llmc {

// Turns of the loop in which a thread waits, each 20 to 50 ns on processors of today: in all about as long as it takes
// to wake a thread that sleeps.
constexpr const char* kTurns = "2000";

void start_with_threads_that_sleep_soon(char** argv) {
    constexpr const char* kSetting = "GOMP_SPINCOUNT";
    if (std::getenv(kSetting) || std::getenv("OMP_WAIT_POLICY")) return;
    std::error_code unknown;
    const auto program = std::filesystem::read_symlink("/proc/self/exe", unknown);  // its name is what others see
    if (unknown || setenv(kSetting, kTurns, 1) != 0) return;
    execv(program.c_str(), argv);
    unsetenv(kSetting);
}

}  // namespace llmc
