// interrupt.h - Ctrl-C, a batch system's SIGTERM or SIGUSR1 and a closed terminal, taken by a thread of their own
//
// No handler ever runs on a thread that computes. That is not only tidy: oneDNN's fp32 product (dnnl_sgemm of 2.6,
// AVX-512) moves the stack pointer into its buffers, where the frame that the kernel of the system pushes for a handler
// overwrites the heap. So the signals that handlers are commonly installed for are blocked in every thread started
// after this object, and waited for in one place.
//
// mpirun of Open MPI 4 keeps Ctrl-C and SIGTERM to itself and ends its processes: SIGCONT at once, SIGTERM and at last
// SIGKILL a second later each (--mca odls_base_sigkill_timeout). So SIGCONT from the launcher is the interruption, and
// its SIGTERM adds nothing. It passes SIGUSR1 on at once.
#pragma once
#include <atomic>
#include <csignal>
#include <thread>

namespace llmc {

class Interrupt {
public:
    // Make it before anything starts a thread. The first SIGINT, SIGTERM, SIGHUP or SIGUSR1 is remembered, a second one
    // ends the program at once.
    Interrupt();
    ~Interrupt();
    Interrupt(const Interrupt&) = delete;
    Interrupt& operator=(const Interrupt&) = delete;

    int signal() const { return signal_; }  // 0: none

private:
    void watch();

    const bool launched_;  // by mpirun of Open MPI
    sigset_t before_{};
    std::atomic<int> signal_ = 0;
    std::atomic<bool> ending_ = false;
    std::thread thread_;
};

}  // namespace llmc
