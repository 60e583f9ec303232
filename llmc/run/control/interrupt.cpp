// interrupt.cpp - the thread that waits for signals
#include "llmc/run/control/interrupt.h"

#include <pthread.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <ctime>
#include <string_view>
#include <utility>

#include "kernels/base/start_thread.h"

namespace llmc {
namespace {

using namespace std::chrono_literals;

// Signals of one request arrive within this time: microseconds on one machine, milliseconds over a network. A user who
// presses Ctrl-C a second time on purpose is slower. Both are estimates, not measured.
constexpr auto kOneRequest = 1s;

// Not affected by corrections of the time of day; does not count a suspended machine, like the clock of the run.
double coarse_seconds() {
    timespec time{};
    clock_gettime(CLOCK_MONOTONIC_COARSE, &time);
    return double(time.tv_sec) + 1e-9 * double(time.tv_nsec);
}

bool is_ignored(int signal) {
    struct sigaction action {};
    return sigaction(signal, nullptr, &action) == 0 && !(action.sa_flags & SA_SIGINFO) && action.sa_handler == SIG_IGN;
}

[[noreturn]] void give_up() {
    constexpr std::string_view kLine = "error: a second Ctrl-C: ending at once, without saving\n";
    [[maybe_unused]] const auto written = write(STDERR_FILENO, kLine.data(), kLine.size());
    _exit(128 + SIGINT);
}

}  // namespace

Interrupt::Interrupt()
    : launched_(std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr), last_beat_(coarse_seconds()) {
    // sigtimedwait() would return an ignored signal that is blocked, so ignored signals are in neither set.
    sigemptyset(&awaited_);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGALRM, SIGXCPU})
        if (!is_ignored(signal)) sigaddset(&awaited_, signal);
    sigaddset(&awaited_, SIGCONT);
    sigset_t blocked = awaited_;
    for (const int signal : {SIGVTALRM, SIGPROF, SIGCHLD}) sigaddset(&blocked, signal);
    pthread_sigmask(SIG_BLOCK, &blocked, &before_);
    thread_ = start_thread([this] { watch(); });
}

Interrupt::~Interrupt() {
    ending_ = true;
    pthread_kill(thread_.native_handle(), SIGCONT);  // ends sigtimedwait(); only this thread receives it
    thread_.join();
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

void Interrupt::save_begins() {
    save_began_ = Clock::now();
    save_requested_ = false;
}

double Interrupt::stopped_seconds() {
    const std::scoped_lock lock(beats_);
    const double now = coarse_seconds(), gap = now - std::exchange(last_beat_, now);
    if (gap >= kStop) stopped_ += gap;
    return stopped_;
}

void Interrupt::watch() {
    for (;;) {
        siginfo_t info{};
        constexpr timespec kBeat{.tv_sec = 0, .tv_nsec = 100'000'000};
        const int signal = sigtimedwait(&awaited_, &info, &kBeat), fault = errno;
        stopped_seconds();
        if (signal < 0 && (fault == EINTR || fault == EAGAIN)) continue;
        if (signal < 0 || ending_) return;
        handle(signal, launched_ && info.si_pid == getppid());
    }
}

void Interrupt::handle(int signal, bool from_launcher) {
    const auto now = Clock::now();
    if (signal == SIGUSR2) {
        if (now - save_began_.load() >= kOneRequest) save_requested_ = true;
        return;
    }
    if (signal == SIGCONT) {
        if (!from_launcher) return;  // the program was stopped and continued
        signal = SIGTERM;
    }
    if (signal == SIGINT) {
        if (first_ctrl_c_ && now - *first_ctrl_c_ >= kOneRequest) give_up();
        if (!first_ctrl_c_) first_ctrl_c_ = now;
    }
    if (signal_ == 0) signal_ = signal;
}

}  // namespace llmc
