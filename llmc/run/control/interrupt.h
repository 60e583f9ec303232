// interrupt.h - Ctrl-C, a batch system's SIGTERM or SIGUSR1 and a closed terminal end a run, SIGUSR2 asks for a
// checkpoint; all taken by a thread of their own
//
// No handler ever runs on a thread that computes. That is not only tidy: oneDNN's fp32 product (dnnl_sgemm of 2.6,
// AVX-512) moves the stack pointer into its buffers, where the frame that the kernel of the system pushes for a handler
// overwrites the heap. So the signals that handlers are commonly installed for are blocked in every thread started
// after this object, and waited for in one place.
//
// One wish may come several times: `timeout -s INT` signals the program and then its group, a batch system follows
// SIGUSR1 with SIGTERM, launch.sh repeats its own. So what comes after the first signal changes nothing, but for a
// second SIGINT, a second or more after the first: Ctrl-C of somebody who will not wait.
//
// mpirun of Open MPI 4 keeps Ctrl-C and SIGTERM to itself and ends its processes: SIGCONT at once, SIGTERM and at last
// SIGKILL a second later each (--mca odls_base_sigkill_timeout). So SIGCONT from the launcher is the interruption. It
// passes SIGUSR1 and SIGUSR2 on at once.
#pragma once
#include <atomic>
#include <chrono>
#include <csignal>
#include <optional>
#include <thread>

namespace llmc {

class Interrupt {
public:
    // Make it before anything starts a thread. The first SIGINT, SIGTERM, SIGHUP or SIGUSR1 is remembered; a late
    // second SIGINT ends the program at once, and says so. What was ignored when the program started, as SIGHUP is
    // below nohup, stays so.
    Interrupt();
    ~Interrupt();
    Interrupt(const Interrupt&) = delete;
    Interrupt& operator=(const Interrupt&) = delete;

    int signal() const { return signal_; }  // 0: none

    // SIGUSR2 has come since save_begins().
    bool save_asked() const { return save_asked_; }
    // The checkpoint that was asked for will be of now. SIGUSR2 within a second from now asked for the same one: it
    // reaches the ranks of a run one after the other.
    void save_begins();

private:
    using Clock = std::chrono::steady_clock;
    void watch();
    void take(int signal, bool of_launcher);

    const bool launched_;  // by mpirun of Open MPI
    sigset_t before_{}, awaited_{};
    std::optional<Clock::time_point> first_ctrl_c_;  // of the thread
    std::atomic<int> signal_ = 0;
    std::atomic<bool> save_asked_ = false;
    std::atomic<Clock::time_point> save_began_ = Clock::time_point{};  // at first long ago: when the machine started
    std::atomic<bool> ending_ = false;
    std::thread thread_;
};

}  // namespace llmc
