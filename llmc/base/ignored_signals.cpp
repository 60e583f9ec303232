// ignored_signals.cpp - records the ignored signals before the constructors of libraries run
#include "llmc/base/ignored_signals.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <csignal>
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

}  // namespace llmc
