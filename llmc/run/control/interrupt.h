// interrupt.h - signals: Ctrl-C, SIGTERM, SIGUSR1 (batch systems), SIGXCPU and SIGALRM (limits of processor time and of
// time) and SIGHUP (a closed terminal) end a run, SIGUSR2 requests a checkpoint; a thread of its own receives them all
//
// No signal handler ever runs on a thread that computes. oneDNN's fp32 product (dnnl_sgemm of 2.6, AVX-512) moves the
// stack pointer into its buffers, where the frame that the kernel pushes for a handler overwrites the heap. So the
// signals that programs commonly install handlers for are blocked in every thread started after this object, and one
// thread waits for them.
//
// One request may arrive several times: `timeout -s INT` signals the program and then its process group, a batch system
// sends SIGTERM after SIGUSR1, launch.sh repeats its own. So signals after the first change nothing, except a second
// SIGINT a second or more after the first: a user pressed Ctrl-C again to end the program at once.
//
// mpirun of Open MPI does not forward Ctrl-C and SIGTERM. It ends its processes: SIGCONT at once, then SIGTERM and
// SIGKILL, a second apart (version 4: --mca odls_base_sigkill_timeout) or a quarter of a second (version 5). So SIGCONT
// from the launcher counts as an interruption.
// mpirun forwards SIGUSR1 and SIGUSR2 at once.
//
// The thread also wakes up every tenth of a second. If it could not for kStop, the whole process was stopped (SIGSTOP,
// Ctrl-Z, a frozen container, a paused virtual machine), whatever its other threads were doing. Times include it.
#pragma once
#include <atomic>
#include <chrono>
#include <csignal>
#include <mutex>
#include <optional>
#include <thread>

namespace llmc {

class Interrupt {
public:
    // Construct it before any thread starts. The first of the signals that end a run is stored; a second SIGINT
    // a second or more later prints a line and ends the program at once. Signals that were ignored when the program
    // started, as SIGHUP is under nohup, stay ignored.
    Interrupt();
    ~Interrupt();
    Interrupt(const Interrupt&) = delete;
    Interrupt& operator=(const Interrupt&) = delete;

    int signal() const { return signal_; }  // 0: none

    // SIGUSR2 has arrived since save_begins().
    bool save_requested() const { return save_requested_; }
    // The requested checkpoint begins now. A SIGUSR2 within the next second belongs to the same request: it reaches the
    // ranks of a run one after the other.
    void save_begins();

    // Of this process, since construction: stops of kStop or more, to within a tenth of a second. A thread that asks
    // right after a stop knows of it, also before the thread of this object has woken up.
    double stopped_seconds();
    static constexpr double kStop = 5;  // seconds; on an overloaded machine threads wake up later, but not that late

private:
    using Clock = std::chrono::steady_clock;
    void watch();
    void handle(int signal, bool from_launcher);

    const bool launched_;  // by Open MPI's mpirun
    sigset_t before_{}, awaited_{};
    std::optional<Clock::time_point> first_ctrl_c_;  // used by the thread only
    std::atomic<int> signal_ = 0;
    std::atomic<bool> save_requested_ = false;
    std::atomic<Clock::time_point> save_began_ = Clock::time_point{};  // initially the epoch of the clock
    std::atomic<bool> ending_ = false;
    std::mutex beats_;
    double last_beat_, stopped_ = 0;  // seconds; guarded by beats_
    std::thread thread_;
};

}  // namespace llmc
