// waiting_threads.cpp - the program started again with a setting of GNU's OpenMP library
#include "llmc/base/waiting_threads.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>

namespace llmc {

// Turns of the loop in which a thread waits, each 20 to 50 ns on processors of today. With 2000 a step of 124M took up
// to 15 % longer than with threads that spin, on two cores that did nothing else; with 10000 one of the quickstart took
// 1.7 times as long as with threads that sleep, beside several compilers.
constexpr const char* kTurns = "6000";

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
