#include "llmc/interrupt.h"

#include <pthread.h>
#include <unistd.h>

namespace llmc {
namespace {

sigset_t set_of(std::initializer_list<int> signals) {
    sigset_t set;
    sigemptyset(&set);
    for (int signal : signals) sigaddset(&set, signal);
    return set;
}

}  // namespace

Interrupt::Interrupt() {
    const sigset_t blocked = set_of({SIGINT, SIGTERM, SIGHUP, SIGALRM, SIGVTALRM, SIGPROF, SIGCHLD});
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
    const sigset_t awaited = set_of({SIGINT, SIGTERM, SIGHUP});
    for (int signal = 0; sigwait(&awaited, &signal) == 0;) {
        if (ending_) return;
        if (signal_ != 0) _exit(128 + signal);
        signal_ = signal;
    }
}

}  // namespace llmc
