// interrupt.cpp - the thread that waits for signals
#include "llmc/run/interrupt.h"

#include <pthread.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

namespace llmc {
namespace {

sigset_t set_of(std::initializer_list<int> signals) {
    sigset_t set;
    sigemptyset(&set);
    for (int signal : signals) sigaddset(&set, signal);
    return set;
}

}  // namespace

// A launcher that ends the run closes the pipe that the output goes to: no reason to die before the model is saved.
Interrupt::Interrupt() : launched_(std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr) {
    const sigset_t blocked = set_of({SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGCONT, SIGPIPE, SIGALRM, SIGVTALRM, SIGPROF,
                                     SIGCHLD});
    pthread_sigmask(SIG_BLOCK, &blocked, &before_);
    thread_ = std::thread([this] { watch(); });
}

Interrupt::~Interrupt() {
    ending_ = true;
    pthread_kill(thread_.native_handle(), SIGHUP);  // out of its waiting; a signal to one thread, nobody else sees it
    thread_.join();
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

void Interrupt::watch() {
    const sigset_t awaited = set_of({SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGCONT});
    bool launcher_ends_run = false;
    while (true) {
        siginfo_t info{};
        const int signal = sigwaitinfo(&awaited, &info);
        if (signal < 0 && errno == EINTR) continue;
        if (signal < 0 || ending_) return;
        const bool of_launcher = launched_ && info.si_pid == getppid();
        if (signal == SIGCONT && !of_launcher) continue;  // somebody stopped the program and let it go on
        if (signal_ != 0 && !(of_launcher && launcher_ends_run)) _exit(128 + signal);
        launcher_ends_run = launcher_ends_run || (of_launcher && signal != SIGUSR1);
        if (signal_ == 0) signal_ = signal == SIGCONT ? SIGTERM : signal;
    }
}

}  // namespace llmc
